"""Runs read back from their directories, each with its own config and objects, and the inputs refused on the way."""

import json

import gymnax
import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import optax
import pytest
from flax import nnx, struct

import purerl
from purerl import Network, Outputs, PPOConfig, cli, losses
from purerl.core.keys import named_key
from purerl.networks.distributions import Categorical
from purerl.runs.analysis import plots
from tests.helpers.bare import bare_python
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.probes import Params, Varied
from tests.helpers.programs import compiles
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
SIZES = {"total_timesteps": 64 * 4, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
GRAVITIES = np.array([10.0, 0.0, 5.0], np.float32)


# --- 1, 2, 3: a batch of configs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Train two seeds of each of three gravities of Pendulum, in a directory; return it and the result of `fit`."""
    directory = tmp_path_factory.mktemp("batch") / "run"
    cfg = PPOConfig(env="Pendulum-v1", **SIZES)
    cfgs = jax.vmap(lambda g: cfg.replace(lr=3e-2, env_params={"g": g, "max_steps_in_episode": 16}))(GRAVITIES)
    return directory, purerl.fit(cfgs, 3, directory, num_seeds=2, eval_every=1, eval_episodes=8, save_every=2)


@pytest.mark.slow
def test_each_run_is_read_back_with_its_own_config(batch):
    directory, result = batch
    run = purerl.load(directory)
    assert run.labels == tuple(f"config {c}, seed {s}" for c in range(3) for s in (3, 4))
    assert digest(run.state) == digest(result.state)
    for place, (config, seed) in enumerate((c, s) for c in range(3) for s in (3, 4)):
        one = run.select(config=config, seed=seed)
        assert one.labels == (f"config {config}, seed {seed}",)
        assert one.cfg.env_params["g"] == GRAVITIES[config]
        assert digest(one.state.params) == digest(jax.tree.map(lambda x: x[place], result.state.params))  # noqa: B023
        # The run's own evaluation, with its key: in another gravity the return would be far off.
        key = named_key(one.state.key, "evaluation", one.state.clock)
        mean = one.train.evaluate(one.state, key, 8).returns.mean()
        np.testing.assert_allclose(mean, result.evaluations["episode_return"][-1, place], rtol=1e-3)
    with pytest.raises(purerl.ConfigError, match=r"3 configs.*run\.select"):
        _ = run.train


@pytest.mark.slow
def test_the_command_evaluates_each_run_in_its_own_environment(tmp_path, capsys):
    cfg = PPOConfig(env="Pendulum-v1", **{**SIZES, "total_timesteps": 64})
    cfgs = jax.vmap(lambda n: cfg.replace(env_params={"max_speed": n}))(np.array([8.0, 0.0], np.float32))
    purerl.fit(cfgs, directory=tmp_path)
    assert cli.main(["eval", str(tmp_path), "--num-episodes", "16"]) == 0
    moving, still = (line.split("│") for line in capsys.readouterr().out.splitlines() if "config" in line)
    assert "config 1, seed 0" in still[1]
    assert float(moving[3]) > 10  # the standard deviation of returns
    # A pendulum that cannot turn stays at its start, so its return shows the start; in another gravity it would swing.
    at_start = purerl.load(tmp_path).select(config=1).evaluate(64).returns
    assert at_start.std() > 500


@pytest.mark.slow
def test_a_plot_has_a_line_for_each_config(batch, tmp_path):
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


def test_one_run_can_be_taken_out_of_several(batch):
    _, result = batch
    by_place, by_label = result.run.select(3), result.run.select("config 1, seed 4")
    assert digest(by_place.state) == digest(by_label.state) == digest(result.run.select(-3).state)
    assert by_place.num_runs is None
    after, _ = jax.jit(by_place.train.update)(by_place.state)  # training can go on
    assert int(after.clock.low) == 5
    assert by_place.select(0).labels == by_place.labels == ("config 1, seed 4",)
    for wrong in ({"run": 6}, {"run": "seed 9"}, {"seed": 3}, {"config": 7, "seed": 3}):
        with pytest.raises(purerl.ConfigError, match="such run; there are 6: 'config 0, seed 3'"):
            result.run.select(**wrong)


@pytest.mark.slow
def test_the_best_of_each_run_is_kept(batch):
    directory, result = batch
    returns = result.evaluations["episode_return"]
    wanted = tuple(result.evaluations["update"][returns.argmax(0)])
    best = purerl.load(directory, best=True)
    assert best.finished == wanted
    assert len(set(wanted)) > 1  # or the best on average would do
    for place in range(6):
        one = best.select(place)
        key = named_key(one.state.key, "evaluation", one.state.clock)
        np.testing.assert_allclose(one.train.evaluate(one.state, key, 8).returns.mean(), returns[:, place].max(), rtol=1e-3)
    assert digest(result.run.best.state) == digest(best.state)
    assert result.run.select(4).best.finished == (wanted[4],)


@pytest.mark.slow
def test_the_commands_take_a_run(batch, tmp_path, capsys):
    directory = str(batch[0])
    assert cli.main(["eval", directory, "--run", "config 1, seed 4", "--num-episodes", "4"]) == 0
    out = capsys.readouterr().out
    assert "config 1, seed 4" in out
    assert "config 0" not in out
    assert cli.main(["export", directory, "--run", "3", "--out", str(tmp_path / "policy")]) == 0
    assert "config 1, seed 4" in capsys.readouterr().out
    assert cli.main(["export", directory, "--run", "6", "--out", str(tmp_path / "policy")]) == 2
    assert "no such run; there are 6" in capsys.readouterr().err
    one = purerl.load(directory).select(3)
    act = jax.export.deserialize(bytearray((tmp_path / "policy").read_bytes())).call
    obs, first = np.ones((5, 3), np.float32), np.zeros(5, bool)
    action, _ = act((), obs, first, jax.random.PRNGKey(0), np.array(True))
    np.testing.assert_allclose(action, one.train.policy(one.state)((), obs, first, KEY, deterministic=True)[0], rtol=1e-5)


# --- 4: parameters that are no plain dict -----------------------------------------------------------------------------


class Linears(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.logits, self.value = (nnx.Linear(a, b, rngs=rngs) for a, b in ((4, 8), (8, 2), (8, 1)))


def of_nnx():
    graph, _ = nnx.split(nnx.eval_shape(lambda: Linears(nnx.Rngs(0))), nnx.Param)

    def apply(params, carry, obs, first):
        net = nnx.merge(graph, params["all"])
        features = jnp.tanh(net.hidden(obs))
        return Outputs(Categorical(net.logits(features)), net.value(features)[..., 0]), ()

    return Network(lambda key, obs: {"all": nnx.split(Linears(nnx.Rngs(params=key)), nnx.Param)[1]}, apply)


@pytest.mark.slow
def test_parameters_of_nnx_are_saved_and_restored(tmp_path):
    train = tiny(network=of_nnx())
    state = jax.jit(train.init)(KEY)
    purerl.save(tmp_path, train, state)
    assert digest(purerl.restore(tmp_path, train)) == digest(state)
    assert digest(purerl.load(tmp_path, env=Varied(), network=of_nnx()).state) == digest(state)


@pytest.mark.slow
def test_a_run_with_parameters_of_nnx_resumes_to_the_same_bits(tmp_path):
    several = {"network": of_nnx(), "num_seeds": 3, "cfg": CFG.replace(num_epochs=1)}
    whole = fitted(updates=4, **several)
    stopped(tmp_path, 2, updates=4, **several)
    assert digest(fitted(updates=4, directory=tmp_path, **several).state) == digest(whole.state)
    loaded = purerl.load(tmp_path, env=Varied(), network=of_nnx())
    assert digest(loaded.state) == digest(whole.state)
    purerl.fit(CFG.replace(total_timesteps=64), env=Varied(), network=of_nnx(), num_seeds=3, init_from=tmp_path)


# --- 5, 6, 7: numbers at the edges ------------------------------------------------------------------------------------


def test_rounding_does_not_raise_an_adaptive_rate():
    """The first minibatch of an update has moved nothing; its divergence here is rounding, and positive."""
    cfg = PPOConfig(lr_schedule="kl_adaptive", lr=1e-3, num_minibatches=4)
    assert _rates(cfg, [5e-11, 5e-11, 1.0, 5e-11]) == pytest.approx([1e-3, 1.5e-3, 1e-3, 1.5e-3])
    stale = purerl.APPOConfig(lr_schedule="kl_adaptive", lr=1e-3, num_minibatches=4)  # a real first divergence
    assert _rates(stale, [5e-3 - 1e-5, 1.0, 5e-3, 5e-3]) == pytest.approx([1.5e-3, 1e-3, 1e-3, 1e-3])
    with pytest.warns(UserWarning, match="measured before the policy moves, so the rate stays"):
        still = tiny(CFG.replace(lr_schedule="kl_adaptive", num_minibatches=1, num_epochs=1))
    np.testing.assert_array_equal(purerl.summarize(jax.jit(still)(KEY).metrics)["lr"], np.float32(1e-3))


def _rates(cfg, divergences):
    """Return the rates of the steps of one update, whose minibatches have these divergences."""
    from purerl.core.keys import clock_at
    from purerl.learning.optimizers import base_optimizer, phase_optimizer

    cfg = purerl.config.fields.single_precision(cfg)
    moving = phase_optimizer(cfg, base_optimizer(cfg.replace(optimizer="sgd")), None, 1)
    params, rates = {"policy": jnp.zeros(1)}, []
    course = moving.begin(moving.init(params))
    for kl in divergences:
        now = {"clock": clock_at(0), "step": jnp.uint32(len(rates)), "metrics": {"kl": jnp.float32(kl)}}
        updates, course = moving.update({"policy": jnp.ones(1)}, course, params, **now)
        rates.append(-float(updates["policy"][0]))
    return rates


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_no_ratio_is_infinite(advantage):
    """Ratios are bounded: where the clip wins the gradient is 0; elsewhere it leads back, however far the policy went."""
    of = lambda log_prob: losses.clipped_surrogate(log_prob, jnp.float32(0), jnp.float32(advantage), jnp.float32(0.2))
    for log_ratio in (19.0, 89.0, 1e9, -1e9):
        loss, gradient = jax.value_and_grad(of)(jnp.float32(log_ratio))
        assert np.isfinite(loss), log_ratio
        assert np.isfinite(gradient), log_ratio
        assert (gradient > 0) == (advantage < 0 and log_ratio > 0), log_ratio
        assert np.isfinite(losses.approximate_kl(jnp.float32(log_ratio), jnp.float32(0)))


# --- 8: a warm start --------------------------------------------------------------------------------------------------


CURIOUS = {"rnd": purerl.RNDConfig(features=4, hidden=(4,), init_steps=0)}


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, CURIOUS], ids=["plain", "rnd"])
def test_a_warm_start_may_have_other_environments(more, tmp_path):
    cfg = CFG.replace(normalize_reward=True, total_timesteps=128, **more)
    source = purerl.fit(cfg, directory=tmp_path, env=Varied())
    still = cfg.replace(num_envs=8, lr=0.0, lr_final=0.0)
    moved = {}
    warm = purerl.fit(still, init_from=tmp_path, env=Varied(), measure=lambda state: moved.update(state=state) or {"one": 1.0})
    assert digest(warm.state.params) == digest(source.state.params)
    theirs, ours = (result.state.statistics.reward for result in (source, warm))
    assert ours.discounted.shape == (8,)
    assert int(ours.moments.count.low) == int(theirs.moments.count.low) + 128  # its moments went on


# --- 9, 10, 11: hyperparameters of optimizers that had no effect ------------------------------------------------------


@pytest.mark.slow
def test_an_optimizer_sees_the_shapes_of_parameters():
    decays = optax.add_decayed_weights(1.0, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params))
    cfg = CFG.replace(total_timesteps=64, num_epochs=1, num_minibatches=1, lr=1e-3, lr_schedule="constant")
    plain, decayed = (jax.jit(tiny(cfg, optimizer=o))(KEY).state.params for o in (optax.identity(), optax.chain(decays)))
    start = jax.jit(tiny(cfg).init)(KEY).params
    for first, a, b in zip(*map(jax.tree.leaves, (start, plain, decayed)), strict=True):
        np.testing.assert_allclose(a - b, 1e-3 * first if first.ndim > 1 else 0 * first, atol=1e-6)


@pytest.mark.slow
def test_muon_trains_the_matrices():
    dimensions = lambda params: jax.tree.map(lambda x: optax.contrib.MuonDimensionNumbers(), params)
    kinds = lambda params: jax.tree.map(lambda x: "muon" if x.ndim == 2 else "adam", params)
    muon = optax.contrib.scale_by_muon(weight_dimension_numbers=dimensions)
    optimizer = optax.multi_transform({"muon": muon, "adam": optax.scale_by_adam()}, kinds)
    state = jax.jit(tiny(CFG.replace(total_timesteps=64), optimizer=optimizer))(KEY).state
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    kept = [x.shape for x in jax.tree.leaves(state.opt_state["ppo"].inner_states["muon"])]
    assert sorted(shape for shape in kept if len(shape) == 2) == sorted(
        x.shape for x in jax.tree.leaves(state.params) if x.ndim == 2
    )


@pytest.mark.slow
def test_adamw_decays_matrices_alone():
    cfg = CFG.replace(optimizer="adamw", lr=1e-3, total_timesteps=64, memory="gru", memory_size=4, log_std_init=1.0)
    one = jax.jit(lambda decay: tiny(cfg.replace(weight_decay=decay, max_grad_norm=1e-12), box=True)(KEY).state.params)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), one(jnp.float32(0.5)), one(jnp.float32(0)))
    for path, distance in jax.tree_util.tree_leaves_with_path(moved):
        assert (distance > 1e-6) == ("kernel" in jax.tree_util.keystr(path)), path


@pytest.mark.slow
@pytest.mark.parametrize(
    "cfg",
    [
        pytest.param(purerl.DAACConfig(**SIZES), id="daac"),
        pytest.param(purerl.PPGConfig(**SIZES, n_pi=2, e_v=2), id="ppg", marks=pytest.mark.slow),
    ],
)
def test_the_weight_of_the_value_counts_where_the_value_learns_alone(cfg):

    @jax.jit
    def run(weight):  # the start in the same program, since two programs may round it in two ways
        train = purerl.make_train(cfg.replace(vf_coef=weight), env=Varied())
        return train.init(KEY).params, train(KEY).state.params

    (start, none), (_, some) = run(jnp.float32(0)), run(jnp.float32(1))
    assert digest(some["value"]) != digest(start["value"])
    if isinstance(cfg, purerl.DAACConfig):  # PPG's auxiliary phase also moves the value
        assert digest(none["value"]) == digest(start["value"])
    assert digest(none["value"]) != digest(some["value"])


# --- 12, 13: devices of a run -----------------------------------------------------------------------------------------


def test_nothing_needs_fcntl(fresh_python, tmp_path):
    code = f"""
import sys
sys.modules["fcntl"] = None  # importing it fails, as on Windows
import warnings; warnings.simplefilter("ignore")
import purerl
from purerl.runs.storage.lock import Lock
import pathlib
lock = Lock(pathlib.Path({str(tmp_path)!r}))
try:
    Lock(pathlib.Path({str(tmp_path)!r}))
except purerl.DirectoryLocked as error:
    print("locked", error)
lock.release()
Lock(pathlib.Path({str(tmp_path)!r})).release()
"""
    assert fresh_python(code).startswith("locked")


def test_an_exported_policy_runs_where_the_readme_says(batch, tmp_path, fresh_python):
    assert cli.main(["export", str(batch[0]), "--run", "0", "--out", str(tmp_path / "policy")]) == 0
    code = f"""
import jax, jax.export, numpy as np
act = jax.export.deserialize(bytearray(open({str(tmp_path / "policy")!r}, "rb").read())).call
print(act((), np.ones((2, 3), np.float32), np.zeros(2, bool), jax.random.PRNGKey(0), np.array(True))[0].shape)
"""
    assert bare_python(fresh_python, code, tmp_path) == "(2, 1)\n"


# --- 14, 15 -----------------------------------------------------------------------------------------------------------


class Undeclared(gymnax.environments.environment.Environment):
    """An environment without declared parameters."""

    reset_env, step_env, action_space = Varied.reset_env, Varied.step_env, Varied.action_space
    observe_state, goes, ends, kinds, kind = Varied.observe_state, Varied.goes, Varied.ends, Varied.kinds, Varied.kind


def test_parameters_that_nobody_declared_are_refused():
    with pytest.raises(purerl.ConfigError, match=r"env = 'Undeclared': has no default_params of its own.*after one step"):
        purerl.make_train(CFG, env=Undeclared())
    train = purerl.make_train(CFG, env=Undeclared(), env_params=Params(max_steps_in_episode=5))
    assert train.env.max_steps == 5


# --- valid, and surprising --------------------------------------------------------------------------------------------


class Other(Varied):
    """Another state of the same shapes."""

    limit = 3


@struct.dataclass
class Limit:
    max_steps_in_episode: int = 5


def own_loss(outputs, old, advantage, cfg):
    return losses.clipped_surrogate(outputs.policy.log_prob(old.action), old.log_prob, advantage, cfg.clip_eps)


@pytest.mark.slow
def test_another_object_in_the_place_of_a_runs_own_is_refused(tmp_path, capsys):
    given = {"env": Varied(), "policy_loss": own_loss}
    purerl.fit(CFG.replace(total_timesteps=64), directory=tmp_path, **given)
    more = CFG.replace(total_timesteps=128, lr_schedule="linear")
    cases = [
        ({}, "env: the run had a custom one, tests.helpers.probes.Varied; in Python, pass it as `env=`"),
        ({"env": Varied()}, r"policy_loss: the run had a custom one, .*\.own_loss; in Python, pass it as `policy_loss=`"),
        ({**given, "env": Other()}, r"env: is tests\.helpers\.probes\.Varied in the run, is .*\.Other here"),
        ({**given, "env_params": Limit(4)}, r"env_params: the run had the default, .*Limit here; leave out `env_params=`"),
        ({**given, "reward_shaper": lambda r, s: r}, r"reward_shaper: the run had the default"),
    ]
    for objects, says in cases:
        before = compiles()
        with pytest.raises(purerl.CheckpointMismatch, match=says):
            purerl.load(tmp_path, **objects)
        if "env" in objects:
            with pytest.raises(purerl.CheckpointMismatch, match=says):
                purerl.fit(more, directory=tmp_path, **objects)
            with pytest.raises(purerl.CheckpointMismatch, match=says):
                purerl.restore(tmp_path, purerl.make_train(CFG, **objects))
        assert compiles() == before
    assert cli.main(["eval", str(tmp_path)]) == 1
    assert "tests.helpers.probes.Varied; in Python, pass it as `env=`" in capsys.readouterr().err
    assert purerl.load(tmp_path, **given).updates == 1


@pytest.mark.slow
def test_another_environments_parameters_are_refused(tmp_path):
    purerl.fit(CFG.replace(total_timesteps=64), directory=tmp_path, env=Varied(), env_params=Limit(4))
    with pytest.raises(purerl.CheckpointMismatch, match=r"env_params: \.max_steps_in_episode 4 in the run, .* 3 here"):
        purerl.load(tmp_path, env=Varied(), env_params=Limit(3))
    assert purerl.load(tmp_path, env=Varied(), env_params=Limit(4)).updates == 1


@pytest.mark.slow
def test_a_script_may_be_imported_as_a_module(tmp_path, fresh_python):
    """A notebook imports a script as a module: an object that `__main__` defined is the same object there."""
    (tmp_path / "mine.py").write_text(
        "import purerl, tests.helpers.probes\nclass Mine(tests.helpers.probes.Varied): pass\n"
        "if __name__ == '__main__':\n    from tests.helpers.tiny import CFG\n"
        f"    purerl.fit(CFG.replace(total_timesteps=64), directory={str(tmp_path / 'run')!r}, env=Mine())\n"
    )
    fresh_python(f"import runpy; runpy.run_path({str(tmp_path / 'mine.py')!r}, run_name='__main__')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import purerl, mine"
    assert fresh_python(f"{code}\nprint(purerl.load({str(tmp_path / 'run')!r}, env=mine.Mine()).updates)") == "1\n"


@pytest.mark.slow
def test_a_finished_run_is_handed_back(tmp_path, capsys):
    first = fitted(updates=4, directory=tmp_path, eval_every=2, eval_episodes=4)
    before = compiles()
    again = fitted(updates=4, directory=tmp_path, eval_every=2, eval_episodes=4)
    assert compiles() <= before + 3  # the first state and its placement; neither training nor an evaluation
    for name in ("state", "metrics"):
        assert digest(getattr(again, name)) == digest(getattr(first, name))
    assert {name: x.tolist() for name, x in again.evaluations.items()} == {
        name: x.tolist() for name, x in first.evaluations.items()
    }
    assert again.progress.began[0] == again.progress.updates == 4
    with pytest.raises(purerl.CheckpointMismatch, match="the run is at update 4 already, and 3 are asked for"):
        fitted(updates=3, directory=tmp_path)
    command = ["ppo", "--total-timesteps", "64", "--num-envs", "4", "--num-steps", "16", "--directory", str(tmp_path / "b")]
    assert cli.main(command) == 0
    assert "finished before" not in capsys.readouterr().out
    assert cli.main(command) == 0  # so that "restart until 0" ends
    out = capsys.readouterr().out
    assert "finished before, after 1 updates" in out
    assert "64 steps in" in out


@pytest.mark.slow
def test_more_steps_under_a_schedule_that_follows_them_is_told(tmp_path):
    says = r"total_timesteps = 256: was 128, and lr_schedule and ent_schedule follows it"
    both = {"cfg": CFG.replace(ent_schedule="linear"), "directory": tmp_path / "both"}
    fitted(updates=2, **both)
    with pytest.warns(UserWarning, match=says):
        fitted(updates=4, **both)


@pytest.mark.slow
def test_more_steps_under_a_schedule_of_its_own_length_are_not(tmp_path):
    fixed = {"cfg": CFG.replace(lr_schedule="polynomial", decay_steps=100), "directory": tmp_path / "fixed"}
    fitted(updates=2, **fixed)
    fitted(updates=4, **fixed)  # a warning would be an error here


def test_loading_falls_back_as_resuming_does(tmp_path):
    fitted(updates=4, directory=tmp_path, save_every=2)
    newest = tmp_path / "checkpoints" / "4"
    (newest / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.warns(UserWarning, match="4 is not what was written; taking the one before"):
        assert purerl.load(tmp_path, env=Varied()).updates == 2
    with pytest.warns(UserWarning, match="taking the one before"):
        purerl.restore(tmp_path, tiny(CFG.replace(total_timesteps=256)))
    with pytest.raises(purerl.CheckpointCorrupt):
        purerl.load(tmp_path, env=Varied(), updates=4)


def test_a_list_is_no_sweep():
    for values in ([1.0, 2.0], (1.0, 2.0)):
        with pytest.raises(purerl.ConfigError, match=r"env_params = .*must be one number; to sweep it, jax.vmap"):
            purerl.make_train(PPOConfig(env_params={"gravity": values}))
    sweep = jax.vmap(lambda x: PPOConfig(env_params={"max_steps_in_episode": x}))(np.array([5, 0]))
    with pytest.raises(purerl.ConfigError, match=r"max_steps_in_episode.*must be between 1 and"):
        purerl.fit(sweep)


class Breaks:
    """A recorder that fails once."""

    def __init__(self, at):
        self.at, self.seen, self.began = at, [], 0

    def begin(self, progress):
        self.began += 1

    def __call__(self, progress):
        if progress.updates == self.at:
            raise OSError("no space left")
        self.seen.append(progress.updates)


@pytest.mark.slow
def test_a_recorder_that_failed_is_tried_again():
    recorder = Breaks(at=3)
    with pytest.warns(UserWarning, match="failed, it is skipped until the next checkpoint: OSError"):
        fitted(updates=8, save_every=5, chunk_seconds=1e-9, recorders=(recorder,))
    assert recorder.seen == [1, 2, 6, 7, 8]
    assert recorder.began == 2


@pytest.mark.slow
def test_a_directory_is_data(tmp_path, fresh_python):
    """A directory names a module as its environment, network and loss: nothing ever imports that module."""
    purerl.fit(CFG.replace(total_timesteps=64), directory=tmp_path / "run", env=Varied())
    (tmp_path / "sentinel.py").write_text("raise SystemExit('imported')")
    from purerl.runs.storage import checkpoint

    path = tmp_path / "run" / "checkpoints" / "1" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    record = json.loads(metadata["custom_metadata"]["record"])
    record["objects"] = {name: {"is": "sentinel.Mine"} for name in ("env", "network", "policy_loss", "sentinel")}
    record["config"]["env"] = "sentinel:Mine"
    text = json.dumps(record)
    metadata["custom_metadata"] = {"record": text, "sha256": checkpoint._sha256(text.encode())}
    path.write_text(json.dumps(metadata))
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import purerl, purerl.cli
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG
directory = {str(tmp_path / "run")!r}
for read in (
    lambda: purerl.load(directory),
    lambda: purerl.load(directory, env=Varied()),
    lambda: purerl.fit(CFG.replace(total_timesteps=128), directory=directory, env=Varied()),
    lambda: purerl.restore(directory, purerl.make_train(CFG, env=Varied())),
):
    try:
        read()
        print("read")
    except (purerl.CheckpointError, purerl.ConfigError) as error:
        print(type(error).__name__)
for command in (["eval", directory], ["plot", directory, "--out", directory + ".png"], ["render", directory]):
    print(purerl.cli.main(command))
print("sentinel" in sys.modules)
"""
    out = fresh_python(code).split()
    assert out[:4] == ["CheckpointMismatch"] * 4
    assert out[-1] == "False"
