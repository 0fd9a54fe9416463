import csv
import json
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

import purerl
from purerl.core.metrics import Sum
from purerl.envs.animation import save_animation
from purerl.runs.logging.progress import Progress
from purerl.runs.logging.recorders import Csv, JsonLines, TensorBoard, Wandb
from tests.helpers.interrupted import StopAt, fitted
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG
from tests.ideas.simulator import simulator


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(directory):
    """Return `(tag, step, value)` of every scalar in the directory's event files, in order, as TensorBoard reads them.

    TensorBoard skips a cut-off record, and at the start of a session forgets earlier values of the same and later steps.
    """
    found = []
    for path in sorted(directory.glob("events*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            if at + size + 16 > len(data):
                break
            event = Event.FromString(data[at + 12 : at + 12 + size])
            if event.session_log.status == SessionLog.START:
                found = [scalar for scalar in found if scalar[1] < event.step]
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            at += size + 16
    return found


def recorders(directory, every=0):
    return (JsonLines(directory / "a.jsonl", every), Csv(directory / "a.csv", every), TensorBoard(directory / "tb", every))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Stop a run after update 5, leave rows cut off by a kill after its checkpoint, and resume it."""
    directory = tmp_path_factory.mktemp("recorded")
    fitted(directory=directory / "run", chunk_seconds=1e-9, recorders=(*recorders(directory), StopAt(5)))
    with open(directory / "a.jsonl", "a") as file:
        file.write('{"update": 6, "steps": 384}\n{"update": 7, "st')
    with open(directory / "a.csv", "a") as file:
        file.write("6,384,1\n7,44")
    events = next((directory / "tb").glob("events*"))
    events.write_bytes(events.read_bytes() + b"half a record")
    result = fitted(directory=directory / "run", chunk_seconds=1e-9, recorders=recorders(directory))
    return directory, result


@pytest.mark.slow
def test_json_lines_have_every_update_once(recorded):
    directory, result = recorded
    rows = rows_of(directory / "a.jsonl")
    assert [row["update"] for row in rows] == list(range(1, 11))
    assert [row["steps"] for row in rows] == [64 * i for i in range(1, 11)]
    np.testing.assert_allclose([row["episode_return"] for row in rows], purerl.summarize(result.metrics)["episode_return"])
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)


def test_csv_has_every_update_once(recorded):
    directory, result = recorded
    with open(directory / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["update"]) for row in rows] == list(range(1, 11))
    np.testing.assert_allclose([float(row["entropy"]) for row in rows], purerl.summarize(result.metrics)["entropy"])


def test_tensorboard_has_every_update_once_under_the_usual_tags(recorded):
    directory, result = recorded
    events = list(events_of(directory / "tb"))
    for tag, name in (("charts/episodic_return", "episode_return"), ("losses/value_loss", "value_loss")):
        mine = [(step, value) for other, step, value in events if other == tag]
        assert [step for step, _ in mine] == [64 * i for i in range(1, 11)]
        np.testing.assert_allclose([value for _, value in mine], purerl.summarize(result.metrics)[name], rtol=1e-6)
    assert {"charts/SPS", "losses/policy_loss", "losses/approx_kl", "charts/learning_rate"} <= {tag for tag, _, _ in events}


@pytest.mark.long
def test_multi_update_rows_also_end_at_checkpoints(tmp_path):
    fitted(directory=tmp_path / "run", save_every=4, recorders=recorders(tmp_path, every=3))
    assert [row["update"] for row in rows_of(tmp_path / "a.jsonl")] == [3, 4, 6, 8, 9, 10]
    fitted(chunk_seconds=1e-9, recorders=(JsonLines(tmp_path / "b.jsonl", every=4),))
    assert [row["update"] for row in rows_of(tmp_path / "b.jsonl")] == [4, 8, 10]


@pytest.mark.long
@pytest.mark.slow
def test_seeds_are_recorded_individually_and_aggregated(tmp_path):
    result = fitted(seed=5, num_seeds=2, chunk_seconds=1e-9, recorders=(JsonLines(tmp_path / "a.jsonl"),))
    rows, wanted = rows_of(tmp_path / "a.jsonl"), purerl.summarize(result.metrics)["episode_return"]
    for row, (a, b) in zip(rows, wanted.T, strict=True):
        np.testing.assert_allclose([row["episode_return/seed 5"], row["episode_return/seed 6"]], [a, b])
        np.testing.assert_allclose(row["episode_return"], (a + b) / 2, rtol=1e-6)
        np.testing.assert_allclose(row["episode_return/std"], abs(a - b) / 2, atol=1e-6)
        assert row["episode_return/min"] == min(a, b)
        assert row["episode_return/max"] == max(a, b)


def test_rows_have_the_newest_evaluation(tmp_path):
    files = recorders(tmp_path)
    result = fitted(updates=4, eval_every=2, eval_episodes=2, chunk_seconds=1e-9, recorders=files)
    before, middle, end = result.evaluations["episode_length"][:, 0]
    rows = rows_of(tmp_path / "a.jsonl")
    assert [row["evaluation/episode_length"] for row in rows] == [before, middle, middle, end]
    tags = [step for tag, step, _ in events_of(tmp_path / "tb") if tag == "evaluation/episode_length"]
    assert tags == [64, 128, 192, 256]


@pytest.mark.slow
def test_measure_adds_a_metric_of_the_state(tmp_path):
    measure = lambda state: {"last_bias": state.params["value"]["head"]["Linear_0"]["bias"][0]}
    result = fitted(measure=measure, recorders=(JsonLines(tmp_path / "a.jsonl"),))
    biases = purerl.summarize(result.metrics)["last_bias"]
    assert biases.shape == (10,)
    np.testing.assert_allclose(biases[-1], result.state.params["value"]["head"]["Linear_0"]["bias"][0])
    np.testing.assert_allclose(rows_of(tmp_path / "a.jsonl")[0]["last_bias"], biases[0], rtol=1e-5)


@pytest.mark.long
def test_missing_returns_are_null_rather_than_zero(tmp_path):
    from tests.helpers.probes import Endless

    cfg = purerl.PPOConfig(total_timesteps=256, num_envs=4, num_steps=16, hidden=(8,))
    result = purerl.fit(cfg, env=Endless(), recorders=(JsonLines(tmp_path / "a.jsonl"),))
    assert all(row["episode_return"] is None for row in rows_of(tmp_path / "a.jsonl"))
    assert np.isnan(purerl.summarize(result.metrics)["episode_return"]).all()
    assert all(math.isfinite(x) for x in purerl.summarize(result.metrics)["value"])


def test_missing_wandb_package_is_named():
    with pytest.raises(ImportError, match=r"pip install '\.\[wandb\]'"):
        Wandb()


@pytest.fixture
def wandb(monkeypatch):
    """Replace W&B; return the ids of the runs that were begun, and the steps of all rows."""
    begun, logged = [], []
    run = SimpleNamespace(log=lambda row, step: logged.append(step), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: begun.append(options.get("id")) or run))
    return begun, logged


def test_wandb_rows_are_indexed_by_environment_steps(wandb):
    begun, logged = wandb
    fitted(recorders=(Wandb(every=2),))
    assert (begun, logged) == ([None], [128, 256, 384, 512, 640])


@pytest.mark.long
@pytest.mark.slow
def test_resumed_run_continues_its_wandb_run(wandb, tmp_path):
    begun, logged = wandb
    recorder = lambda name: Wandb(2, tmp_path / name)
    fitted(recorders=(StopAt(4), recorder("a")), directory=tmp_path / "a", chunk_seconds=1e-9)
    for _ in range(2):  # the second time, the run is already finished
        fitted(recorders=(recorder("a"),), directory=tmp_path / "a")
    assert logged == [128, 256, 384, 512, 640]
    assert len(begun) == 2
    assert begun[0] == begun[1] == (tmp_path / "a" / "wandb.id").read_text()
    fitted(recorders=(recorder("b"),), directory=tmp_path / "b")
    assert begun[2] != begun[0]


@pytest.mark.slow
def test_rendered_episodes_reach_tensorboard_and_wandb(wandb, monkeypatch, tmp_path):
    images = [np.full((8, 8, 3), i, np.uint8) for i in range(2)]
    env = simulator._replace(draw=lambda states, returns, path: save_animation(images, path, seconds=0.1))
    monkeypatch.setattr(sys.modules["wandb"], "Video", lambda path, format: (path, format), raising=False)
    options = {"directory": tmp_path / "a", "eval_every": 2, "eval_episodes": 2, "render_every": 1}
    files = (TensorBoard(tmp_path / "tb"), Wandb(every=100))
    purerl.fit(CFG.replace(total_timesteps=128), env=env, recorders=files, progress=False, **options)
    assert sorted(path.name for path in (tmp_path / "a" / "renders").iterdir()) == ["0.gif", "2.gif"]
    assert [step for tag, step, _ in events_of(tmp_path / "tb") if tag == "episode"] == [0, 128]
    assert wandb[1] == [0, 128, 128]  # two episodes and a row


def test_refused_config_starts_no_wandb_run(wandb):
    with pytest.raises(purerl.ConfigError):
        purerl.fit(CFG.replace(env="Unknown-v0"), recorders=(Wandb(),))
    assert not wandb[0]


def test_resumed_csv_keeps_column_names_with_commas(tmp_path):
    """Columns are named as for a batch of configs: `value_loss/config 0, seed 3`."""
    for updates in (1, 2):
        rows = Csv(tmp_path / "metrics.csv")
        rows.begin(SimpleNamespace(updates=updates - 1, evaluation=None))
        rows.write({"update": updates, "value_loss/config 0, seed 3": 0.5})
        rows.close()
    assert (tmp_path / "metrics.csv").read_text() == 'update,"value_loss/config 0, seed 3"\n1,0.5\n2,0.5\n'


def test_csv_with_a_truncated_header_is_rewritten(tmp_path):
    (tmp_path / "metrics.csv").write_text("update,value_lo")
    rows = Csv(tmp_path / "metrics.csv")
    rows.begin(SimpleNamespace(updates=1, evaluation=None))
    rows.write({"update": 2, "value_loss": 0.5})
    rows.close()
    assert (tmp_path / "metrics.csv").read_text() == "update,value_loss\n2,0.5\n"


def test_csv_without_kept_rows_takes_the_new_header(tmp_path):
    for names in (("loss",), ("loss", "loss/seed 0", "loss/seed 1")):
        rows = Csv(tmp_path / "metrics.csv")
        with pytest.warns(match="has rows of an earlier run or start, which are replaced") if len(names) > 1 else nullcontext():
            rows.begin(SimpleNamespace(updates=0, evaluation=None))
        rows.write({"update": 1} | dict.fromkeys(names, 0.5))
        rows.close()
    assert (tmp_path / "metrics.csv").read_text() == "update,loss,loss/seed 0,loss/seed 1\n1,0.5,0.5,0.5\n"


def test_resumed_csv_leaves_columns_without_new_values_empty(tmp_path):
    for row in ({"update": 1, "measure/norm": 2.0, "loss": 0.5}, {"update": 2, "loss": 0.25}):
        rows = Csv(tmp_path / "metrics.csv")
        rows.begin(SimpleNamespace(updates=row["update"] - 1, evaluation=None))
        rows.write(row)
        rows.close()
    assert (tmp_path / "metrics.csv").read_text() == "update,measure/norm,loss\n1,2.0,0.5\n2,,0.25\n"


def test_row_count_of_a_long_run_grows_logarithmically(tmp_path):
    """Run ten times as long, with a chunk per second: this adds a constant number of rows, whose sums cover every chunk."""
    plan, counted = SimpleNamespace(batch_size=64), []
    rows = JsonLines(tmp_path / "a.jsonl")
    metric = Sum(np.ones((1,), np.int32))

    def progress(second):
        return Progress(plan, ("seed 0",), second, float(second), {"episodes": metric})

    rows.begin(progress(0))
    for second in range(1, 100_001):
        rows(progress(second))
        if second in (10_000, 100_000):
            rows.flush()
            counted.append(len(rows_of(tmp_path / "a.jsonl")))
    rows.close()
    assert 5_000 < counted[0] < 10_000
    assert counted[1] - counted[0] < 5_000 * math.log(10) + 2
    assert sum(row["episodes"] for row in rows_of(tmp_path / "a.jsonl")) == 100_000


@pytest.mark.long
def test_too_many_metrics_rows_warn(tmp_path):
    cfg = CFG.replace(total_timesteps=64 * 2_000_000)
    with pytest.warns(UserWarning, match=r"saves 2,000,000 rows of metrics; metrics_every=20 saves 100,000 or fewer"):
        purerl.fit(cfg, directory=tmp_path, env=Varied(), chunk_seconds=1e-9, recorders=(StopAt(1),))


def test_csv_names_the_columns_that_it_cannot_hold(tmp_path):
    rows = Csv(tmp_path / "metrics.csv")
    rows.begin(SimpleNamespace(updates=0, evaluation=None))
    rows.write({"update": 1, "loss": 0.5})
    with pytest.warns(UserWarning, match=r"metrics\.csv has no columns for evaluation/episode_return, which are left out"):
        rows.write({"update": 2, "loss": 0.5, "evaluation/episode_return": 1.0})
    rows.write({"update": 3, "loss": 0.5, "evaluation/episode_return": 1.0})
    rows.close()


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_rows_have_no_evaluation_of_a_later_update(tmp_path, every):
    options = {"recorders": (JsonLines(tmp_path / "rows.jsonl", every),), "eval_every": 4, "eval_episodes": 4}
    result = purerl.fit(CFG.replace(total_timesteps=64 * 9, env="CartPole-v1"), chunk_seconds=15, **options)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    table = dict(zip(result.evaluations["update"].tolist(), result.evaluations["episode_return"][:, 0].tolist(), strict=True))
    assert list(table) == [0, 4, 8, 9]
    assert len({*table.values()}) == 4
    newest = lambda row: max(update for update in table if update <= row["update"])
    assert [row["evaluation/episode_return"] for row in rows] == [table[newest(row)] for row in rows]
