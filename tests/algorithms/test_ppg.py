"""Phasic Policy Gradient: when the auxiliary phase runs, which groups it trains, and equality with PPO."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import purerl
from purerl import Outputs, PPGConfig
from purerl.algorithms.ppg import AuxBatch, aux_loss, aux_phase_optimizer, value_phase
from purerl.core.keys import clock_at
from purerl.core.types import Network, Sample, Sequences
from purerl.learning.optimizers import Optimizer, base_optimizer
from purerl.learning.phases import Phase, run_phase
from purerl.networks.distributions import Categorical
from tests.helpers.configs import NORMALISED, RICH
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.leaks import checking_leaks
from tests.helpers.probes import Rich, Varied
from tests.helpers.programs import branches, equations
from tests.helpers.recurrent import running_sum
from tests.helpers.tiny import CFG, at, digest, learner, tiny

KEY = jax.random.key(0)
SIZES = {name: getattr(CFG, name) for name in ("num_envs", "num_steps", "num_minibatches", "hidden", "lr")}
PPG = PPGConfig(total_timesteps=64 * 10, n_pi=4, e_aux=2, aux_columns=4, **SIZES)
REMEMBERS = PPG.replace(memory="gru", memory_size=8, sequence_length=8)


def made(cfg=PPG, env=None, **objects):
    return purerl.make_train(cfg, env=env or Varied(), **objects)


def trained(cfg=PPG, env=None):
    return jax.jit(made(cfg, env))(KEY)


# --- the auxiliary phase ----------------------------------------------------------------------------------------------


def joint_loss(given, beta):
    """Return the loss of an auxiliary phase for given network outputs, and its gradient, `[1, 3]`."""
    row = lambda name: jnp.asarray(given[name], jnp.float32)[None]
    old = AuxBatch((), jnp.zeros((1, 3), bool), row("value_targets"), Categorical(row("logits_old")))

    def apply(params, carry, obs, first):
        return Outputs(Categorical(params["logits"]), params["value"], {"aux_value": params["aux"]}), ()

    params = {"logits": row("logits_new"), "value": row("value_true"), "aux": row("value_aux")}
    loss = aux_loss(PPGConfig(beta_clone=beta), Network(None, apply))
    return jax.value_and_grad(loss, has_aux=True)(params, Sequences(old, ()))


def test_joint_loss_matches_the_reference_vector(vectors):
    given, expected = vectors["ppg_joint_loss"]
    (total, metrics), gradient = joint_loss(given, 1.0)
    np.testing.assert_allclose(total, expected["total_beta1"], rtol=1e-5)
    np.testing.assert_allclose(metrics["aux/clone_loss"], expected["policy_distance"], rtol=1e-5)
    np.testing.assert_allclose(metrics["aux/value_loss"], expected["value_true_loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["aux/aux_value_loss"], expected["value_aux_loss"], rtol=1e-5)
    np.testing.assert_allclose(joint_loss(given, 0.5)[0][0], expected["total_beta0_5"], rtol=1e-5)
    np.testing.assert_allclose(total / 4, expected["total_beta1_accum4"], rtol=1e-5)  # the loss of each of four accumulated parts
    assert all(jnp.abs(g).max() > 0 for g in gradient.values())


def one_step(accumulate, columns):
    """Return parameters after one epoch of plain descent on the squared distance, in minibatches of `columns`."""
    sgd = Optimizer(optax.identity(), True, rate=lambda clock, step, steps: jnp.float32(0.1))
    loss = lambda params, batch: (jnp.square(params["policy"]["x"] - batch.steps).mean(), {})
    phase = Phase("aux", loss, sgd, None, 1, 8 // (columns * accumulate), jnp.inf, accumulate=accumulate)
    data = Sequences(jax.random.normal(KEY, (3, 8)), ())
    return run_phase(phase, clock_at(0), KEY, {"policy": {"x": jnp.float32(0)}}, optax.EmptyState(), data)[0]["policy"]["x"]


def test_accumulated_gradients_equal_one_step_on_a_larger_minibatch():
    np.testing.assert_allclose(one_step(4, 1), one_step(1, 4), rtol=1e-6)
    assert abs(one_step(1, 1) - one_step(1, 4)) > 1e-3


@pytest.mark.long
def test_aux_phase_with_accumulation_equals_larger_minibatches():
    of = lambda **changes: trained(PPG.replace(total_timesteps=64 * 4, **changes)).state.params
    same, other = of(aux_columns=2, aux_accumulation=2), of(aux_columns=4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), same, other)


@pytest.mark.slow
def test_aux_phase_runs_every_n_pi_updates_and_lowers_the_value_error():
    train = made()
    metrics = trained().metrics
    assert metrics["aux/loss"].count.tolist() == [0, 0, 0, 2 * 4, 0, 0, 0, 2 * 4, 0, 0]
    plan = {phase.name: phase for phase in train.plan.phases}
    assert (plan["aux"].runs, plan["aux"].gradient_steps, plan["aux"].left_over) == (2, 2 * 8, 2)
    assert plan["ppo"].gradient_steps == 10 * 2
    assert train.plan.gradient_steps == 20 + 16
    assert "left_over" in str(train.plan)
    found = purerl.summarize(metrics)
    due = ~np.isnan(found["aux/loss"])
    assert (found["aux/error_after"][due] < found["aux/error_before"][due]).all()


@pytest.mark.slow
def test_zero_learning_rate_leaves_parameters_unchanged():
    both = jax.jit(lambda cfg: (made(cfg).init(KEY).params, made(cfg)(KEY).state.params))
    still = PPG.replace(aux_lr=0.0, lr=0.0)
    before, after = both(still)
    assert digest(after) == digest(before)
    _, moved = both(still.replace(aux_lr=1e-3))
    assert all(digest(moved[group]) != digest(before[group]) for group in before)


def test_cloning_loss_keeps_the_policy():
    wild = PPG.replace(total_timesteps=64 * 12, lr=1e-2, aux_lr=1e-2, e_aux=20, max_grad_norm=jnp.inf)
    run = jax.jit(lambda cfg: made(cfg)(KEY).metrics)
    held, loose = (purerl.summarize(run(wild.replace(beta_clone=beta)))["aux/kl_after"][-1] for beta in (1e4, 0.0))
    assert held < 1e-4 < 1e-2 < loose


def test_aux_phase_uses_the_learning_rate_its_policy_phase_began_with():
    cfg = PPG.replace(total_timesteps=64 * 8, lr_schedule="linear", aux_lr=1e-3)
    rate = lambda updates: aux_phase_optimizer(cfg, base_optimizer(cfg)).lr(None, clock_at(updates), 1)
    # These are the learning rates at the start of their policy phases.
    np.testing.assert_allclose([rate(3), rate(7)], [1e-3, 0.5e-3], rtol=1e-6)


@pytest.mark.parametrize("arch", ["dual", "detach", "shared"])
def test_value_loss_trains_the_torso_only_if_shared(arch):
    """The value loss moves the policy's features in the policy phase only if they are shared."""
    train = made(PPG.replace(arch=arch))
    state = train.init(KEY)
    first, target = jnp.ones((1, 4), bool), jnp.arange(4.0)[None]
    batch = Sequences(Sample(state.actor.obs[None], first, target, target, target, target, target), ())
    loss = value_phase(learner(train.cfg, train.network)).loss
    gradient = jax.grad(loss, has_aux=True)(state.params, batch)[0]
    moved = {group for group in gradient if any(jnp.abs(x).max() > 0 for x in jax.tree.leaves(gradient[group]))}
    assert moved == ({"torso", "value"} if arch == "shared" else {"value"})


# --- equality with PPO ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_ppg_without_auxiliary_epochs_equals_ppo_bit_for_bit(fresh_python):
    """A new process compiles with optimisation, as users do: without it, XLA sums in another order in a larger program."""
    code = """
import jax, purerl
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, digest
cfg = CFG.replace(arch="shared")
same = {name: value for name, value in vars(cfg).items() if name != "num_epochs"}
ppg = purerl.PPGConfig(**same, e_aux=0, e_pi=cfg.num_epochs, e_v=cfg.num_epochs)
mine, theirs = (jax.jit(purerl.make_train(c, env=Varied()))(jax.random.key(0)) for c in (ppg, cfg))
params = {group: mine.state.params[group] for group in theirs.state.params}
metrics = {name: mine.metrics[name] for name in theirs.metrics}
print(digest((params, mine.state.actor, metrics)) == digest((theirs.state.params, theirs.state.actor, theirs.metrics)))
"""
    assert fresh_python(code, XLA_FLAGS="") == "True\n"


@pytest.mark.slow
@pytest.mark.each_landing("shared")
@pytest.mark.parametrize("arch", ["dual", "detach", "shared"])
def test_different_epoch_counts_split_policy_and_value_phases(arch):
    """If `e_pi` and `e_v` differ, policy and value have separate phases and optimizers."""
    cfg = PPG.replace(e_pi=1, e_v=3, arch=arch)
    train = made(cfg)
    assert [(phase.name, phase.gradient_steps) for phase in train.plan.phases] == [("value", 60), ("policy", 20), ("aux", 16)]
    result = jax.jit(train)(KEY)
    assert result.metrics["value_loss"].count.tolist() == [6] * 10
    assert set(result.state.opt_state) == {"value", "policy", "aux"}
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.metrics))


@pytest.mark.long
def test_shared_optimizer_counts_the_steps_of_both_phases():
    state = trained(PPG.replace(aux_optimizer="shared")).state
    assert set(state.opt_state) == {"ppo"}
    assert int(state.opt_state["ppo"].count) == 10 * 2 + 2 * 8


def test_auxiliary_phase_of_a_shared_optimizer_leaves_the_predictor_alone():
    rnd = purerl.RNDConfig(features=4, hidden=(8,), init_steps=16)
    until_first = {"total_timesteps": PPG.batch_size * PPG.n_pi, "aux_optimizer": "shared", "rnd": rnd}
    found = [trained(PPG.replace(e_aux=epochs, **until_first)).state for epochs in (1, 3)]
    leaves = [jax.tree_util.tree_leaves_with_path((state.params, state.opt_state)) for state in found]
    predictor = lambda group: [x for path, x in group if "['predictor']" in jax.tree_util.keystr(path)]
    assert len(predictor(leaves[0])) > len(jax.tree.leaves(found[0].params["predictor"]))  # with the optimizer's moments
    for one, three in zip(*map(predictor, leaves), strict=True):  # two programs, which may round differently
        np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-7)
    assert digest(found[0].params["policy"]) != digest(found[1].params["policy"])


def test_auxiliary_phase_trains_a_part_of_a_network_that_is_called_predictor():
    class Named(nn.Module):
        @nn.compact
        def __call__(self, obs):
            x = nn.Dense(4, name="predictor")(obs)
            policy, value, aux = (nn.Dense(n, name=name)(x) for n, name in ((2, "policy"), (1, "value"), (1, "aux_value")))
            return policy, value, {"aux_value": aux.squeeze(-1)}

    cfg = PPG.replace(lr=0.0, lr_final=0.0, aux_lr=1e-2, n_pi=1, total_timesteps=PPG.batch_size)
    train = tiny(cfg, network=purerl.from_linen(Named))
    before = train.init(jax.random.key(0))
    after, _ = jax.jit(train.update)(before)
    assert digest(before.params["predictor"]) != digest(after.params["predictor"])


# --- all of PPO's options ---------------------------------------------------------------------------------------------


@pytest.mark.each_landing("none")
@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_ratio_is_one_before_the_first_gradient_step(memory):
    """Actions are masked and multi-discrete, and statistics move; the recurrent case cuts rollouts of 16 into sequences of 8."""
    base = REMEMBERS if memory == "gru" else PPG
    cfg = base.replace(**NORMALISED, **RICH, lr=0.0, aux_lr=0.0, total_timesteps=64 * 5)
    metrics = purerl.summarize(trained(cfg, Rich()).metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    np.testing.assert_allclose(metrics["aux/clone_loss"][3], 0, atol=1e-6)
    assert metrics["clip_fraction"].max() == 0


def test_aux_phase_replays_from_each_rollouts_first_hidden_state():
    """Compare at a learning rate of 0: the cloned policy is the acting policy, and the value error is that of the rollouts."""
    cfg = PPG.replace(lr=0.0, aux_lr=0.0, total_timesteps=64 * 4, normalize_reward=False)
    acted = []

    def head(network):
        def apply(params, carry, obs, first):
            outputs, carry = network.apply(params, carry, obs, first)
            return outputs._replace(heads={"aux_value": outputs.value}), carry

        return network._replace(apply=apply)

    train = made(cfg, network=head(running_sum(2, 4)))
    state, update = train.init(KEY), jax.jit(train.update)
    for _ in range(4):
        state, metrics = update(state)
        acted.append(float(purerl.summarize(metrics)["value_loss"]))
    np.testing.assert_allclose(float(purerl.summarize(metrics)["aux/error_before"]), np.mean(acted), rtol=1e-4)


def test_aux_head_of_another_shape_is_refused():
    network = running_sum(2, 4)

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        return outputs._replace(heads={"aux_value": outputs.value[..., None]}), carry

    with pytest.raises(purerl.ConfigError, match="the head 'aux_value' must have the shape of the value"):
        made(PPG, network=network._replace(apply=apply))


@pytest.mark.long
def test_buffer_stores_observations_unchanged():
    class Pixels(Varied):
        def observe_state(self, state):
            return (255 * jnp.clip(super().observe_state(state), 0, 1)).astype(jnp.uint8).reshape(2, 2, 1)

    train = made(PPG.replace(torso="mlp"), Pixels())
    state, update = train.init(KEY), jax.jit(train.update)
    buffer = state.extra["buffer"]
    assert (buffer.steps.obs.dtype, buffer.steps.obs.shape) == (jnp.uint8, (16, 4, 4, 2, 2, 1))
    for i in range(5):
        slot, before = i % 4, state
        state, _ = update(state)
        steps = state.extra["buffer"].steps
        np.testing.assert_array_equal(steps.obs[0, slot], before.actor.obs)
    np.testing.assert_array_equal(steps.target[:, 1], before.extra["buffer"].steps.target[:, 1])  # from the previous phase


def test_aux_phase_stays_a_branch_under_vmap_over_seeds():
    """Under `vmap` a batched condition would become a select, which computes both sides in every update."""
    train = made()
    axes = train.seed_axes
    states = jax.eval_shape(jax.vmap(train.init, out_axes=axes), jax.random.split(KEY, 2))
    count = lambda train: branches(jax.vmap(train.update, in_axes=(axes,), out_axes=(axes, 0)), states)
    assert count(train) == count(made(PPG.replace(n_pi=1, e_aux=0, aux_columns=1))) + 1


def scanned(train):
    return lambda state: jax.lax.scan(lambda state, _: train.update(state), state, length=2)


def test_separate_update_counters_per_seed_are_refused():
    train = made()
    states = jax.eval_shape(jax.vmap(train.init), jax.random.split(KEY, 2))
    for run in (train.update, jax.jit(train.update), scanned(train)):
        with pytest.raises(purerl.ConfigError, match="has an update counter for each run"):
            jax.eval_shape(jax.vmap(run), states)


@pytest.mark.slow
def test_one_update_counter_for_all_seeds_is_accepted():
    """Loops accept one update counter as well, and a program without `vmap` contains no check."""
    train, state = made(), jax.eval_shape(made().init, KEY)
    axes = train.seed_axes
    states = jax.eval_shape(jax.vmap(train.init, out_axes=axes), jax.random.split(KEY, 2))
    looped = lambda state: (jax.lax.fori_loop(0, 2, lambda _, state: train.update(state)[0], state), {})
    for run in (jax.jit(train.update), scanned(train), looped):
        assert jax.eval_shape(jax.vmap(run, in_axes=(axes,), out_axes=(axes, 0)), states)
    assert "custom_vmap" not in jax.jit(train.update).lower(state).as_text()


@pytest.mark.long
def test_vmap_over_configs_and_seeds_equals_single_runs():
    sweep = jax.vmap(lambda beta: PPG.replace(beta_clone=beta, aux_lr=10 * beta))(jnp.array([1e-4, 1e-3]))
    run = jax.vmap(lambda cfg, key: made(cfg)(key), in_axes=(0, None))
    many = jax.jit(jax.vmap(run, in_axes=(None, 0)))(sweep, jax.random.split(KEY, 2))
    alone = jax.jit(made(at(sweep, 1)))(jax.random.split(KEY, 2)[1])
    got = jax.tree.map(lambda x: x[1, 1], many.state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, alone.state.params)


@pytest.mark.slow
@pytest.mark.each_landing("plain")
@pytest.mark.parametrize("kind", ["plain", "memory", "two seeds"])
def test_run_resumes_bit_for_bit_between_aux_phases(kind, tmp_path):
    run = {"cfg": REMEMBERS if kind == "memory" else PPG, "num_seeds": 2 if kind == "two seeds" else 1}
    whole = fitted(**run)
    stopped(tmp_path, 6, **run)
    again = fitted(directory=tmp_path, **run)
    assert digest(again.state) == digest(whole.state)
    assert digest(again.metrics) == digest(whole.metrics)


@pytest.mark.long
@pytest.mark.slow
def test_strict_jax_modes_pass():
    train = made(PPG.replace(total_timesteps=64 * 4))
    with checking_leaks(), jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        jax.jit(train)(KEY)
    before, (after, _) = jax.eval_shape(train.init, KEY), jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
    kind = lambda x: (x.shape, x.dtype, x.weak_type)
    assert jax.tree.map(kind, before) == jax.tree.map(kind, after)


def test_program_size_is_constant():
    program = lambda **changes: equations(jax.make_jaxpr(made(PPG.replace(**changes)))(KEY).jaxpr)
    assert program(num_steps=512, n_pi=64, e_aux=10, total_timesteps=10**9) == program(num_steps=8)


# --- refused configs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"aux_columns": 5}, "aux_columns", "n_pi \\* num_envs / aux_accumulation = 16"),
        (
            {"aux_columns": 4, "aux_accumulation": 3},
            "aux_accumulation",
            "n_pi \\* num_envs = 16; 2 or 4 would work",
        ),
        ({"aux_optimizer": "shared", "e_v": 2}, "aux_optimizer", "e_pi = e_v"),
        ({"aux_optimizer": "shared", "lr_schedule": "kl_adaptive"}, "aux_optimizer", "separate"),
        ({"n_pi": 2**16, "num_envs": 512, "num_steps": 512}, "n_pi", "fewer than 2\\*\\*31"),
        ({"n_pi": 0}, "n_pi", "between"),
    ],
)
def test_invalid_ppg_configs_are_refused(changes, field, says):
    with pytest.raises(purerl.ConfigError, match=says) as error:
        made(PPG.replace(**changes))
    assert field in [problem.field for problem in error.value.problems]


def test_network_without_the_aux_head_is_refused():
    with pytest.raises(purerl.ConfigError, match="'aux_value'"):
        made(network=running_sum(2, 4))


def test_buffer_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr("purerl.checks.check_environment._memory", lambda: 4 * 64 * (16 + 1 + 4))
    assert made().plan.kept_bytes == 4 * 64 * (16 + 1 + 4)  # observations of four floats, a flag, a target
    with pytest.raises(purerl.ConfigError, match=r"n_pi = 5: buffers need 0\.0 GB"):
        made(PPG.replace(n_pi=5))
