"""Runs of a batch of configs: loading, selection, evaluation and export."""

import jax
import matplotlib.image
import numpy as np
import pytest

import purerl
from purerl import PPOConfig, cli
from purerl.core.keys import fold_in_name
from purerl.runs.analysis import plots
from tests.helpers.bare import bare_python
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
SIZES = {"total_timesteps": 64 * 4, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
GRAVITIES = np.array([10.0, 0.0, 5.0], np.float32)


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Train two seeds of each of three gravities of Pendulum, in a directory; return it and the result of `fit`."""
    directory = tmp_path_factory.mktemp("batch") / "run"
    cfg = PPOConfig(env="Pendulum-v1", **SIZES)
    cfgs = jax.vmap(lambda g: cfg.replace(lr=3e-2, env_params={"g": g, "max_steps_in_episode": 16}))(GRAVITIES)
    return directory, purerl.fit(cfgs, 3, directory, num_seeds=2, eval_every=1, eval_episodes=8, save_every=2)


@pytest.mark.long
def test_each_run_is_loaded_with_its_own_config(batch):
    directory, result = batch
    run = purerl.load(directory)
    assert run.labels == tuple(f"env_params.g = {g:g}, seed {s}" for g in GRAVITIES for s in (3, 4))
    assert digest(run.state) == digest(result.state)
    for place, (config, seed) in enumerate((c, s) for c in range(3) for s in (3, 4)):
        one = run.select(config=config, seed=seed)
        assert one.labels == (f"env_params.g = {GRAVITIES[config]:g}, seed {seed}",)
        assert one.cfg.env_params["g"] == GRAVITIES[config]
        assert digest(one.state.params) == digest(jax.tree.map(lambda x: x[place], result.state.params))  # noqa: B023
        # The run's own evaluation, with its key: in another gravity the return would be far off.
        key = fold_in_name(one.state.key, "evaluation", one.state.clock)
        mean = one.train.evaluate(one.state, key, 8).returns.mean()
        np.testing.assert_allclose(mean, result.evaluations["episode_return"][-1, place], rtol=1e-3)
    with pytest.raises(purerl.ConfigError, match=r"3 configs.*run\.select"):
        _ = run.train


@pytest.mark.long
@pytest.mark.slow
def test_plot_has_one_line_per_config(batch, tmp_path):
    directory, result = batch
    figure = plots.plot([directory], tmp_path / "a.png")
    (axes,) = figure.axes
    says = [f"run: env_params.g = {g} (2 seeds)" for g in ("10", "0", "5")]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == says
    assert len(axes.collections) == 3
    assert matplotlib.image.imread(tmp_path / "a.png").std() > 0.01
    curves = plots.curves_of(directory, "value_loss")
    wanted = purerl.summarize(result.metrics)["value_loss"]
    np.testing.assert_array_equal(np.concatenate([curve.values for curve in curves]), wanted)


@pytest.mark.slow
def test_select_returns_one_run_of_a_batch(batch):
    _, result = batch
    by_place, by_label = result.run.select(3), result.run.select("env_params.g = 0, seed 4")
    assert digest(by_place.state) == digest(by_label.state) == digest(result.run.select(-3).state)
    assert by_place.num_runs is None
    after, _ = jax.jit(by_place.train.update)(by_place.state)  # training can continue
    assert int(after.clock.low) == 5
    assert by_place.select(0).labels == by_place.labels == ("env_params.g = 0, seed 4",)
    for wrong in ({"run": 6}, {"run": "seed 9"}, {"seed": 3}, {"config": 7, "seed": 3}):
        with pytest.raises(purerl.ConfigError, match=r"the 6 runs are 'env_params\.g = 10, seed 3'"):
            result.run.select(**wrong)


@pytest.mark.slow
def test_best_state_of_each_run_is_kept(batch):
    directory, result = batch
    returns = result.evaluations["episode_return"]
    wanted = tuple(result.evaluations["update"][returns.argmax(0)])
    best = purerl.load(directory, best=True)
    assert best.finished == wanted
    assert len(set(wanted)) > 1  # otherwise the update with the best mean would do
    for place in range(6):
        one = best.select(place)
        key = fold_in_name(one.state.key, "evaluation", one.state.clock)
        np.testing.assert_allclose(one.train.evaluate(one.state, key, 8).returns.mean(), returns[:, place].max(), rtol=1e-3)
    assert digest(result.run.best.state) == digest(best.state)
    assert result.run.select(4).best.finished == (wanted[4],)


@pytest.mark.slow
def test_commands_accept_one_run_of_a_batch(batch, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    directory = str(batch[0])
    assert cli.main(["eval", directory, "--run", "env_params.g = 0, seed 4", "--num-episodes", "4"]) == 0
    out = capsys.readouterr().out
    assert "env_params.g = 0, seed 4" in out
    assert "env_params.g = 10" not in out
    assert cli.main(["export", directory, "--run", "3", "--out", str(tmp_path / "policy")]) == 0
    assert "env_params.g = 0, seed 4" in capsys.readouterr().out
    assert cli.main(["export", directory, "--run", "6", "--out", str(tmp_path / "policy")]) == 2
    assert "no run matches; the 6 runs are" in capsys.readouterr().err
    one = purerl.load(directory).select(3)
    act = jax.export.deserialize(bytearray((tmp_path / "policy").read_bytes())).call
    obs, first = np.ones((5, 3), np.float32), np.zeros(5, bool)
    action, _ = act((), obs, first, jax.random.PRNGKey(0), np.array(True))
    np.testing.assert_allclose(action, one.train.policy(one.state)((), obs, first, KEY, deterministic=True)[0], rtol=1e-5)


@pytest.mark.slow
def test_exported_policy_runs_with_only_the_documented_packages(batch, tmp_path, fresh_python):
    assert cli.main(["export", str(batch[0]), "--run", "0", "--out", str(tmp_path / "policy")]) == 0
    code = f"""
import jax, jax.export, numpy as np
act = jax.export.deserialize(bytearray(open({str(tmp_path / "policy")!r}, "rb").read())).call
print(act((), np.ones((2, 3), np.float32), np.zeros(2, bool), jax.random.PRNGKey(0), np.array(True))[0].shape)
"""
    assert bare_python(fresh_python, code, tmp_path) == "(2, 1)\n"


def test_state_before_any_update_can_be_saved(tmp_path):
    train = tiny()
    state = jax.jit(train.init)(jax.random.key(3))
    purerl.save(tmp_path, train, state)
    purerl.save(tmp_path, train, jax.jit(train.update)(state)[0])
    assert digest(purerl.restore(tmp_path, train, updates=0)) == digest(state)
    assert int(purerl.load(tmp_path, env=Varied()).state.clock) == 1


@pytest.mark.slow
def test_states_of_several_seeds_can_be_saved(tmp_path):
    train = tiny()
    state = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2)).state
    assert state.clock.low.shape == (2,)
    purerl.save(tmp_path, train, state)
    run = purerl.load(tmp_path, env=Varied())
    assert (run.updates, len(run.labels)) == (train.plan.num_updates, 2)
    assert digest(run.state.params) == digest(state.params)
    assert run.select(config=0, run=1).labels == run.labels[1:]


def test_saving_an_earlier_state_beside_a_later_one_warns(tmp_path):
    train = purerl.make_train(CFG)
    state = train.init(jax.random.key(0))
    purerl.save(tmp_path, train, state)
    purerl.save(tmp_path, train, state)
    purerl.save(tmp_path, train, jax.jit(train.update)(state)[0])
    with pytest.warns(UserWarning, match="also has a checkpoint after 1 updates, which load and restore read by default"):
        purerl.save(tmp_path, train, state)
    with pytest.raises(purerl.ConfigError, match=r"updates = 1: cannot be combined with best=True"):
        purerl.load(tmp_path, best=True, updates=1)


def test_wrong_arguments_of_loaded_runs_are_named(tmp_path):
    train = tiny()
    purerl.save(tmp_path, train, train.init(KEY))
    run = purerl.load(tmp_path, env=Varied())
    for call, says in (
        (lambda: purerl.load(tmp_path, env=Varied(), sede=1), "sede = 1: load has no such argument"),
        (lambda: run.evaluate(seed="x"), "seed = 'x': must be an int"),
        (lambda: purerl.render(run.train, run.state, tmp_path / "a.gif", seed=1.5), "seed = 1.5: must be an int"),
        (lambda: purerl.export(run.train, run.state, platforms="cpu"), "platforms = 'cpu': must be a tuple of cpu, cuda, rocm"),
        (lambda: purerl.plot([tmp_path], 5), "out = 5: must be a path"),
        (lambda: purerl.plot([5], "a.png"), "directories = .*must be a list"),
        (lambda: purerl.plot([tmp_path], "a.png", metric=3), "metric = 3: must be the name of a metric"),
    ):
        with pytest.raises(purerl.ConfigError, match=says):
            call()
