"""Runs read back from their directories, each with its own config and objects, and the inputs refused on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import purerl
from purerl import Network, Outputs, PPOConfig, cli, losses
from purerl.networks.distributions import Categorical
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.probes import Varied
from tests.helpers.programs import compiles
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
SIZES = {"total_timesteps": 64 * 4, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}


# --- a batch of configs -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_eval_command_uses_each_runs_own_environment(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    cfg = PPOConfig(env="Pendulum-v1", **{**SIZES, "total_timesteps": 64})
    cfgs = jax.vmap(lambda n: cfg.replace(env_params={"max_speed": n}))(np.array([8.0, 0.0], np.float32))
    purerl.fit(cfgs, directory=tmp_path)
    assert cli.main(["eval", str(tmp_path), "--num-episodes", "16"]) == 0
    moving, still = (line.split("│") for line in capsys.readouterr().out.splitlines() if "seed" in line)
    assert "max_speed = 0, seed 0" in still[1]
    assert float(moving[3]) > 10  # the standard deviation of returns
    # A pendulum that cannot turn stays at its start, so its return shows the start; in another gravity it would swing.
    at_start = purerl.load(tmp_path).select(config=1).evaluate(64).returns
    assert at_start.std() > 500


# --- parameters that are no plain dict --------------------------------------------------------------------------------


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
def test_nnx_parameters_are_saved_and_restored(tmp_path):
    train = tiny(network=of_nnx())
    state = jax.jit(train.init)(KEY)
    purerl.save(tmp_path, train, state)
    assert digest(purerl.restore(tmp_path, train)) == digest(state)
    assert digest(purerl.load(tmp_path, env=Varied(), network=of_nnx()).state) == digest(state)


@pytest.mark.long
def test_run_with_nnx_parameters_resumes_bit_for_bit(tmp_path):
    several = {"network": of_nnx(), "num_seeds": 3, "cfg": CFG.replace(num_epochs=1)}
    whole = fitted(updates=4, **several)
    stopped(tmp_path, 2, updates=4, **several)
    assert digest(fitted(updates=4, directory=tmp_path, **several).state) == digest(whole.state)
    loaded = purerl.load(tmp_path, env=Varied(), network=of_nnx())
    assert digest(loaded.state) == digest(whole.state)
    purerl.fit(CFG.replace(total_timesteps=64), env=Varied(), network=of_nnx(), num_seeds=3, init_from=tmp_path)


# --- extreme numbers --------------------------------------------------------------------------------------------------


def test_rounding_does_not_raise_an_adaptive_learning_rate():
    """The policy has not moved before the first minibatch of an update, whose divergence is positive by rounding alone."""
    cfg = PPOConfig(lr_schedule="kl_adaptive", lr=1e-3, num_minibatches=4)
    assert _rates(cfg, [5e-11, 5e-11, 1.0, 5e-11]) == pytest.approx([1e-3, 1.5e-3, 1e-3, 1.5e-3])
    stale = purerl.APPOConfig(lr_schedule="kl_adaptive", lr=1e-3, num_minibatches=4)  # its first divergence is real
    assert _rates(stale, [5e-3 - 1e-5, 1.0, 5e-3, 5e-3]) == pytest.approx([1.5e-3, 1e-3, 1e-3, 1e-3])
    with pytest.warns(UserWarning, match="measured before the policy changes, so the rate never changes"):
        still = tiny(CFG.replace(lr_schedule="kl_adaptive", num_minibatches=1, num_epochs=1))
    np.testing.assert_array_equal(purerl.summarize(jax.jit(still)(KEY).metrics)["lr"], np.float32(1e-3))


def _rates(cfg, divergences):
    """Return the rates of the steps of one update, whose minibatches have these divergences."""
    from purerl.core.keys import clock_at
    from purerl.learning.optimizers import base_optimizer, phase_optimizer

    cfg = purerl.config.fields.single_precision(cfg)
    moving = phase_optimizer(cfg, base_optimizer(cfg.replace(optimizer="sgd")), None)
    params, rates = {"policy": jnp.zeros(1)}, []
    course = moving.begin(moving.init(params))
    for kl in divergences:
        now = {
            "clock": clock_at(0),
            "step": jnp.uint32(len(rates)),
            "metrics": {"kl": jnp.float32(kl)},
            "epochs": 1,
            "minibatches": 4,
        }
        updates, course = moving.update({"policy": jnp.ones(1)}, course, params, **now)
        rates.append(-float(updates["policy"][0]))
    return rates


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_extreme_ratios_give_finite_losses_and_gradients(advantage):
    """The gradient is 0 where the clip applies; elsewhere it leads the policy back, however far it has moved."""
    of = lambda log_prob: losses.clipped_surrogate(log_prob, jnp.float32(0), jnp.float32(advantage), jnp.float32(0.2))
    for log_ratio in (19.0, 89.0, 1e9, -1e9):
        loss, gradient = jax.value_and_grad(of)(jnp.float32(log_ratio))
        assert np.isfinite(loss), log_ratio
        assert np.isfinite(gradient), log_ratio
        assert (gradient > 0) == (advantage < 0 and log_ratio > 0), log_ratio
        assert np.isfinite(losses.approximate_kl(jnp.float32(log_ratio), jnp.float32(0)))


# --- hyperparameters of optimizers ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_optimizer_receives_parameters_in_their_shapes():
    decays = optax.add_decayed_weights(1.0, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params))
    cfg = CFG.replace(total_timesteps=64, num_epochs=1, num_minibatches=1, lr=1e-3, lr_schedule="constant")
    plain, decayed = (jax.jit(tiny(cfg, optimizer=o))(KEY).state.params for o in (optax.identity(), optax.chain(decays)))
    start = jax.jit(tiny(cfg).init)(KEY).params
    for first, a, b in zip(*map(jax.tree.leaves, (start, plain, decayed)), strict=True):
        np.testing.assert_allclose(a - b, 1e-3 * first if first.ndim > 1 else 0 * first, atol=1e-6)


@pytest.mark.long
def test_adamw_decays_only_matrices():
    cfg = CFG.replace(optimizer="adamw", lr=1e-3, total_timesteps=64, memory="gru", memory_size=4, log_std_init=1.0)
    one = jax.jit(lambda decay: tiny(cfg.replace(weight_decay=decay, max_grad_norm=1e-12), box=True)(KEY).state.params)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), one(jnp.float32(0.5)), one(jnp.float32(0)))
    for path, distance in jax.tree_util.tree_leaves_with_path(moved):
        assert (distance > 1e-6) == ("kernel" in jax.tree_util.keystr(path)), path


@pytest.mark.each_landing("daac")
@pytest.mark.slow
@pytest.mark.parametrize(
    "cfg",
    [
        pytest.param(purerl.DAACConfig(**SIZES), id="daac"),
        pytest.param(purerl.PPGConfig(**SIZES, n_pi=2, e_v=2), id="ppg"),
    ],
)
def test_vf_coef_affects_a_separate_value_phase(cfg):

    @jax.jit
    def run(weight):  # initial parameters from the same program, since two programs may round them differently
        train = purerl.make_train(cfg.replace(vf_coef=weight), env=Varied())
        return train.init(KEY).params, train(KEY).state.params

    (start, none), (_, some) = run(jnp.float32(0)), run(jnp.float32(1))
    assert digest(some["value"]) != digest(start["value"])
    if isinstance(cfg, purerl.DAACConfig):  # PPG's auxiliary phase also moves the value
        assert digest(none["value"]) == digest(start["value"])
    assert digest(none["value"]) != digest(some["value"])


# --- finished runs and failures ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_finished_run_is_returned_without_training(tmp_path, capsys):
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
    with pytest.raises(purerl.CheckpointMismatch, match="the run is already at update 4, beyond the requested 3 updates"):
        fitted(updates=3, directory=tmp_path)
    command = ["ppo", "--total-timesteps", "64", "--num-envs", "4", "--num-steps", "16", "--directory", str(tmp_path / "b")]
    assert cli.main(command) == 0
    assert "this run finished" not in capsys.readouterr().out
    assert cli.main(command) == 0  # so that a loop that restarts the command until it succeeds ends
    out = capsys.readouterr().out
    assert "this run finished after 1 updates" in out
    assert "64 steps in" in out


def test_loading_falls_back_to_the_previous_checkpoint(tmp_path):
    fitted(updates=4, directory=tmp_path, save_every=2)
    newest = tmp_path / "checkpoints" / "4"
    (newest / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.warns(UserWarning, match="4 does not match its checksum; reading the previous checkpoint"):
        assert purerl.load(tmp_path, env=Varied()).updates == 2
    with pytest.warns(UserWarning, match="reading the previous checkpoint"):
        purerl.restore(tmp_path, tiny(CFG.replace(total_timesteps=256)))
    with pytest.raises(purerl.CheckpointCorrupt):
        purerl.load(tmp_path, env=Varied(), updates=4)


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
def test_failed_recorder_is_retried_at_the_next_checkpoint():
    recorder = Breaks(at=3)
    with pytest.warns(UserWarning, match="failed and is skipped until the next checkpoint: OSError"):
        fitted(updates=8, save_every=5, chunk_seconds=1e-9, recorders=(recorder,))
    assert recorder.seen == [1, 2, 6, 7, 8]
    assert recorder.began == 2
