"""Statistics of the results, and agreement of tables and configs with the records."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.stats import trim_mean

import purerl
from purerl.envs.suites import SUITES
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks import (
    choices,
    gpu,
    peers,
    peers_tasks,
    programs,
    programs_counting,
    recording,
    references,
    results,
    studies_cases,
    tables,
)


def test_interquartile_mean_equals_the_trimmed_mean():
    assert iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == 3.5
    for count in range(1, 14):
        scores = np.random.default_rng(count).normal(size=(count, 2))
        np.testing.assert_allclose(iqm(scores), trim_mean(scores, 0.25))
    assert iqm(np.array([7.0])) == 7


def test_interval_covers_the_mean():
    """Nominally 95 % of intervals contain the mean; the bootstrap of 8 normal samples covers somewhat fewer."""
    rng = np.random.default_rng(0)
    spans = [interval(rng.normal(size=8), resamples=500) for _ in range(200)]
    assert 0.82 < np.mean([low <= 0 <= high for low, high in spans]) < 0.98


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_tables_match_the_recorded_numbers(page):
    assert "<!-- table " in page.read_text()
    assert page.read_text() == tables.rendered(page.read_text())


def resolved(cfg):
    with jax.numpy_rank_promotion("allow"):  # gymnax's Swimmer relies on it
        return purerl.make_train(cfg).cfg.to_json()


@pytest.mark.slow
def test_recorded_scores_belong_to_the_current_configs():
    recorded = results.load()["purerl"]
    assert list(recorded) == [name for name in results.NAMES if name in recorded]
    for name, row in recorded.items():
        cfg = results.config(name)
        then = cfg.from_json(results.json.dumps(row["config"]))
        assert then.to_json() == cfg.to_json() or resolved(then) == resolved(cfg)
        assert row["seeds"] == list(range(8))
        assert len(row["scores"]) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of settings that a control deliberately has
@pytest.mark.each_landing(*(study for study in studies_cases.STUDIES if study != "published"))  # of brax
@pytest.mark.parametrize("study", studies_cases.STUDIES)
def test_cases_of_a_study_can_be_built(study):
    cases = [case for case in studies_cases.STUDIES[study]().values() if not case.purejaxrl]
    with jax.numpy_rank_promotion("allow"):
        for case in cases[:: -(-len(cases) // 2)]:
            if str(case.env or case.cfg.env).startswith("navix/"):
                pytest.importorskip("navix")
            purerl.make_train(case.cfg, env=case.env)


@pytest.mark.each_landing("PointRobot-misc")
@pytest.mark.parametrize(
    "env", [pytest.param(env, marks=pytest.mark.long if "/" in env else pytest.mark.slow) for env in tables.kept("choices")]
)
def test_preset_is_the_best_recorded_candidate(env):
    if "/" in env:
        pytest.importorskip(SUITES[env.partition("/")[0]])
    rows = tables.kept("choices")[env]
    assert list(rows) == [name for name in choices.CHOICES[env].candidates if name in rows]
    for name, row in rows.items():
        cfg = choices.config(env, name)
        assert resolved(cfg.from_json(json.dumps(row["config"]))) == resolved(cfg)
    assert resolved(purerl.preset(env)) == resolved(choices.config(env, choices.best(env)))


@pytest.mark.long
@pytest.mark.parametrize("name", references.OPTIMA)
def test_recorded_optima_equal_the_computed_optima(name):
    np.testing.assert_allclose(references.OPTIMA[name](), references.REFERENCES[name].optimum, rtol=1e-3)


@pytest.mark.long
def test_discounting_lowers_pendulums_optimum_as_documented():
    np.testing.assert_allclose(references.pendulum(discount=0.95), -149.5, atol=0.1)


def test_bandit_references_equal_the_exact_optima():
    assert np.isclose(references.bernoulli_bandit(num_steps=1), 0.5)
    assert np.isclose(references.bernoulli_bandit(num_steps=2), 0.5 + 0.9 * 0.9 + 0.1 * 0.1)
    assert references.gaussian_bandit(num_steps=1) == 0  # the second arm pays -1 in the mean


def test_benchmarks_record_only_on_request_and_clean_commits(monkeypatch):
    """If code has changed since the last commit, `--record` is an error."""
    monkeypatch.setattr(recording, "commit", lambda: "abc-dirty")
    assert recording.parser("").parse_args([]).record is False
    with pytest.raises(SystemExit):
        recording.parser("").parse_args(["--record"])
    monkeypatch.setattr(recording, "commit", lambda: "abc")
    assert recording.parser("").parse_args(["--record"]).record is True


def test_steps_and_seconds_to_a_threshold_follow_from_the_curves():
    """Three seeds reach the threshold in the third of four parts, in the first, and never."""
    curves = [[10, None, 480, 500], [475, 10, 10, 10], [None, 100, 200, 300]]
    row = {"startup": 7.0, "seconds": [3.0, 5.0], "curves": curves}
    steps, seconds = peers_tasks.reached(row, "CartPole-v1", points=4)
    np.testing.assert_allclose(steps, [187_500, 62_500, np.inf])
    np.testing.assert_allclose(seconds, [10, 8, np.inf])


def test_peer_table_reports_steps_and_seconds_to_the_threshold(tmp_path, monkeypatch):
    """One method reaches the threshold of 475 in the tenth of 50 parts, the other never."""
    learns = {"whose": "tuned", "scores": [480.0, 490.0, 500.0], "curves": [[100.0] * 9 + [490.0] * 41] * 3}
    never = {"whose": "its own", "scores": [100.0] * 3, "curves": [[None] + [100.0] * 49] * 3}
    seconds = {"startup": 2.0, "seconds": [10.0] * 3}
    found = {"CartPole-v1": {"purerl": learns | seconds, "SBX": never | seconds}}
    first, second = tables.peers_table(found).splitlines()[2:]
    assert first.startswith("| CartPole-v1, 250,000 | purerl | tuned | 490.0 (48")
    assert first.endswith(" | 475 | 3 of 3 | 50,000 | 4.0 |")
    assert second == "| CartPole-v1, 250,000 | SBX | its own | 100.0 (100.0 to 100.0) | 475 | 0 of 3 | never |  |"
    monkeypatch.setattr(peers, "HERE", tmp_path)
    peers.draw(found)
    assert (tmp_path / "peers.png").stat().st_size > 10_000


def test_peers_use_their_better_hyperparameters(monkeypatch):
    """Tuning seeds choose the hyperparameters of a peer; purerl uses its preset or its tuned values."""
    score = lambda settings, seeds: {
        "scores": [settings.get("learning_rate", settings.get("lr")) * (seed - 99) for seed in seeds],
        "curves": [[]] * len(seeds),
    }
    monkeypatch.setattr(peers, "ours", peers.preset)
    whose, settings, tried = peers.chosen("rejax", "Breakout-MinAtar", score)
    assert (whose, settings["learning_rate"]) == ("purerl's", pytest.approx(5e-3))
    assert tried == pytest.approx({"purerl's": 2.5 * 5e-3, "its own": 2.5 * 2.5674e-4})
    assert peers.chosen("purerl", "Breakout-MinAtar", score)[0] == "preset"
    unended = lambda settings, seeds: {
        "scores": [None if settings["LR"] == 3e-4 else 1.0] * len(seeds),
        "curves": [[]] * len(seeds),
    }
    assert peers.chosen("purejaxrl", "Pendulum-v1", unended)[::2] == ("purerl's", {"its own": None, "purerl's": 1.0})
    monkeypatch.setattr(peers, "tuned", lambda env: peers.preset(env).replace(lr=1.0))
    assert peers.chosen("purerl", "CartPole-v1", score)[0] == "tuned"


@pytest.mark.each_landing("CartPole-v1", "Pendulum-v1")
@pytest.mark.slow
@pytest.mark.parametrize("env", peers.TASKS)
def test_hyperparameters_translate_to_peer_libraries(env):
    cfg = purerl.make_train(peers.preset(env)).cfg
    assert peers.for_rejax(cfg)["learning_rate"] == peers.for_purejaxrl(cfg)["LR"] == float(cfg.lr)
    batch = cfg.num_envs * cfg.num_steps // cfg.num_minibatches
    assert peers.for_baselines(cfg)["batch_size"] == batch
    for settings in (peers.for_rejax(cfg), peers.for_purejaxrl(cfg), peers.for_baselines(cfg)):
        assert json.loads(json.dumps(settings)) == settings


def test_disagreeing_scores_are_named():
    row = {"config": json.loads(results.config("CartPole-v1").to_json()), "scores": [10.0, 20.0, 30.0], "platform": "here"}
    cfg = results.config("CartPole-v1")
    assert results.disagreements(cfg, [10.0, 20.0], row, "here") == []
    assert results.disagreements(cfg, [10.0, 20.0 + 1e-6], row, "here")[0].startswith("seed 1: 20.000001, and 20.0")
    assert results.disagreements(cfg, [0.0, 40.0], row, "there") == []
    assert results.disagreements(cfg, [-0.1, 40.1], row, "there") == [
        "seed 0: -0.1, not from 0 to 40",
        "seed 1: 40.1, not from 0 to 40",
    ]
    (found,) = results.disagreements(cfg.replace(lr=1e-3), [10.0, 20.0], row, "here")
    assert found.startswith("lr: 0.001")


def test_recorded_programs_are_below_their_ceilings():
    recorded = tables.kept("programs")
    assert list(recorded) == list(programs.WORKLOADS)
    for name, targets in recorded.items():
        assert set(targets) == set(programs.TARGETS)
        for target in programs.TARGETS:
            assert programs.beyond(name, target, targets[target]["purerl"]) == []
    for name, row in tables.kept("resets").items():
        assert programs.beyond(name, "h100", row) == []


def test_recorded_fused_minibatches_meet_their_goals():
    for name, forms in tables.kept("fused")["minibatches"].items():
        if name not in ("C", "commit"):  # the goals are of networks with few inputs
            assert forms["fused"]["of a minibatch"] <= 25
            assert forms["fused"]["bytes of a row"] <= forms["xla"]["bytes of a row"] / 4


def test_grown_program_exceeds_its_ceiling():
    recorded = tables.kept("programs")
    row = recorded["A"]["h100"]["purerl"]
    loops = [{"times": 128, "kernels": 11}]
    for what, n in (("kernels", 2501), ("waits", 1), ("memory", 10**6), ("moved", 1.03 * row["moved"]), ("loops", loops)):
        assert len(programs.beyond("A", "h100", row | {what: n})) == 1
    row = recorded["B on 8 devices"]["v5e"]["purerl"]
    assert programs.beyond("B on 8 devices", "v5e", row) == []
    for what in ("kernels", "memory in all"):
        assert len(programs.beyond("B on 8 devices", "v5e", row | {what: 1.03 * row[what]})) == 1


HLO = """
%f (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %slice.1 = f32[1]{0} slice(%a), slice={[0:1]}
  ROOT %broadcast.1 = f32[4]{0} broadcast(%slice.1), dimensions={0}
}

%body (x: (s32[], f32[4])) -> (s32[], f32[4]) {
  %get-tuple-element.1 = f32[4]{0} get-tuple-element(%x), index=1
  %fusion.1 = f32[4]{0} fusion(%get-tuple-element.1), kind=kLoop, calls=%f
  %fusion.2 = f32[4]{0} fusion(%fusion.1), kind=kLoop, calls=%f
}

%seldom (x: f32[4]) -> f32[4] {
  %fusion.3 = f32[4]{0} fusion(%x), kind=kLoop, calls=%f
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %while.1 = (s32[], f32[4]{0}) while(%x), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %conditional.1 = f32[4]{0} conditional(%p, %x, %x), branch_computations={%seldom, %seldom}
  %fusion.4 = f32[4]{0} fusion(%x), kind=kLoop, calls=%f
}
"""


def test_program_counts_follow_loops_and_branches():
    class Compiled:
        as_text = staticmethod(lambda: HLO)
        memory_analysis = staticmethod(lambda: type("Memory", (), {"temp_size_in_bytes": 7}))

    found = programs_counting.counts(Compiled)
    assert {name: found[name] for name in ("kernels", "waits", "memory")} == {"kernels": 5 * 2 + 1 + 1, "waits": 1, "memory": 7}
    assert found["moved"] == 5 * 2 * 32 + 16 + 32  # the operand of `seldom` is a parameter of another computation
    assert found["accessed"] == 5 * 2 * 20 + 16 + 20  # each fusion slices 4 bytes from its operand
    assert found["loops"] == [{"times": 5, "body": "body", "kernels": 2, "waits": 0}]
    assert len(programs_counting.kernels(Compiled, 5)) == 2


@pytest.mark.long
def test_recounted_programs_are_below_their_ceilings():
    """Count programs in a virtual environment of 6 GB beside the tests, which is made if it is missing."""
    home = tables.ROOT / ".venv-programs"
    if not home.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", "jax[cuda13,tpu]==0.10.2", "."], check=True, cwd=tables.ROOT)
    subprocess.run([home / "bin" / "python", "-m", "tests.benchmarks.programs"], check=True, cwd=tables.ROOT)


# --- measurements on a GPU --------------------------------------------------------------------------------------------

SAYS = "print('ready', flush=True); input(); print('{\"speeds\": [%d]}')"
DUMMIES = {
    ("speed", "A", "purerl"): [sys.executable, "-c", SAYS % 3],
    ("speed", "A", "purejaxrl"): [sys.executable, "-c", SAYS % 2],
    ("speed", "B", "purerl"): [sys.executable, "-c", "raise SystemExit(1)"],
}


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return a function that measures dummy programs and returns the results in the file."""
    monkeypatch.setattr(gpu, "commands", lambda *_: DUMMIES)
    monkeypatch.setattr(gpu, "about", lambda: {"device": "another GPU", "commit": "a", "versions": {}, "date": "today"})

    def run(out=tmp_path / "gpu.json", **kept):
        out.write_text(json.dumps(kept))
        monkeypatch.setattr(sys, "argv", ["gpu", "speed", "--out", str(out)])
        assert gpu.main() == 0
        return json.loads(out.read_text())

    return run


def test_measurements_on_a_gpu_are_saved_beside_those_of_the_same_commit(measure):
    same = {"device": "another GPU", "commit": "a", "versions": {}, "rates": {"C": 1}}
    found = measure(**same)
    assert found["rates"] == {"C": 1}
    assert found["speed"]["A"] == {"purerl": {"speeds": [3]}, "purejaxrl": {"speeds": [2]}, "ratio": 1.5}
    assert found["speed"]["B"] == {"purerl": None}  # a program that failed
    assert "rates" not in measure(**same | {"commit": "b"})


def test_full_disk_does_not_end_measurements(measure, monkeypatch, capsys):
    def fails(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(gpu, "atomic_write", fails)
    assert measure(rates=1) == {"rates": 1}
    assert capsys.readouterr().out.count("was not written: No space left") == 3


def test_record_of_a_gpu_is_not_replaced_by_measurements_of_a_cpu(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "about", lambda: {"device": "cpu"})
    monkeypatch.setattr(sys, "argv", ["gpu", "smoke"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "use --out FILE" in capsys.readouterr().err
