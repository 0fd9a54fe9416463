"""Contracts of every run: strict modes of JAX, distinct random streams, a fixed point of the state."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
import purerl.acting.rollout
import purerl.algorithms.appo
import purerl.algorithms.ppo
import purerl.algorithms.rnd
import purerl.learning.phases
import purerl.learning.rewards
from purerl import PPOConfig
from tests.helpers.leaks import checking_leaks
from tests.helpers.programs import branches
from tests.helpers.recurrent import running_sum
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
KINDS = {
    "discrete": lambda cfg=CFG: tiny(cfg),
    "box": lambda cfg=CFG: tiny(cfg, box=True),
    "memory": lambda cfg=CFG: tiny(cfg, network=running_sum(2, 4)),
}


def as_another(cls, **more):
    """Return the tiny run of another algorithm, with the fields that it shares with PPO."""

    def made(cfg=CFG):
        names = {f.name for f in dataclasses.fields(cls)} & set(vars(cfg)) - {"arch"}
        changes = {name: getattr(cfg, name) for name in names if name not in more}
        return tiny(cls(**{**changes, **more}))

    return made


OTHERS = {
    "ppg": as_another(purerl.PPGConfig, n_pi=2, e_aux=1, e_v=2),
    "daac": as_another(purerl.DAACConfig, value_freq=2, advantage_norm="batch"),
    "appo": as_another(purerl.APPOConfig, replay=2, lag=1, replay_order="random"),
    "rnd": as_another(PPOConfig, rnd=purerl.RNDConfig(features=8, hidden=(8,), init_steps=64)),
}
STREAMS = {"start", "params", "rollout", "action", "environment"}
STREAMS_OF = {
    "ppg": {"value/shuffle", "policy/shuffle", "aux/shuffle"},
    "daac": {"value/shuffle", "policy/shuffle"},
    "appo": {"ppo/shuffle", "replay"},
    "rnd": {"ppo/shuffle", "intrinsic", "intrinsic/training", "networks", "random actions"},
}
kinds = pytest.mark.parametrize("kind", KINDS)
slow = [pytest.param(kind, marks=pytest.mark.long) for kind in ("box", "memory")]
slow_but_one = pytest.mark.parametrize("kind", ["discrete", *slow])
others = pytest.mark.parametrize("kind", OTHERS)
KINDS_AND_OTHERS = KINDS | OTHERS


@pytest.mark.slow
@pytest.mark.each_landing("memory")
@slow_but_one
def test_strict_jax_modes_pass(kind):
    """Runs leak no tracer, give no NaN, promote no rank or dtype implicitly, and use no key twice."""
    with (
        checking_leaks(),
        jax.debug_nans(True),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
    ):
        with jax.debug_key_reuse(True):
            train = KINDS[kind]()
            result = jax.jit(train)(jax.random.key(0))
            episodes = train.evaluate(result.state, jax.random.key(1), 4, max_steps=3)
        # JAX 0.10 counts the operands of a `cond` under `vmap` as used, so `debug_key_reuse` is off.
        jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(2), 2))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((result.metrics, episodes)))


def test_config_passed_as_an_argument_leaks_no_tracer():
    with checking_leaks():
        jax.jit(lambda cfg: tiny(cfg)(jax.random.key(0)).metrics["steps"].total).trace(CFG)


def test_weakly_typed_initial_state_becomes_strongly_typed():
    """A custom state that starts as `0.0` is float32 from the start, as after an update."""
    train = tiny(intrinsic=(lambda key, obs: 0.0, lambda total, steps: (steps.reward, total + steps.reward.sum())))
    state = jax.eval_shape(train.init, jax.random.key(0))
    assert not any(x.weak_type for x in jax.tree.leaves(state))
    assert jax.tree.map(str, jax.eval_shape(train.update, state)[0]) == jax.tree.map(str, state)


@pytest.mark.each_landing("box")
@pytest.mark.slow
@kinds
def test_infinite_limits_give_no_nan(kind):
    cfg = CFG.replace(max_grad_norm=jnp.inf, clip_eps=jnp.inf, value_clip_eps=jnp.inf)
    with jax.debug_nans(True):
        result = jax.jit(KINDS[kind](cfg))(KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.metrics))


@kinds
def test_update_keeps_shapes_and_dtypes_of_the_state(kind):
    """An update keeps shapes, dtypes and weak types of the state: nothing recompiles, and `cond` accepts both."""
    train = KINDS[kind]()
    before = jax.eval_shape(train.init, KEY)
    after, _ = jax.eval_shape(train.update, before)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype, old.weak_type) == (new.shape, new.dtype, new.weak_type), jax.tree_util.keystr(path)
        assert not old.weak_type, jax.tree_util.keystr(path)


@pytest.mark.slow
@pytest.mark.each_landing("memory")
@pytest.mark.parametrize("kind", KINDS_AND_OTHERS)
def test_all_random_keys_of_an_update_are_distinct(kind, monkeypatch):
    """`debug_key_reuse` does not see two equal `fold_in`s, so every key of a stream is collected, with loops unrolled."""
    asked = []

    def recorded(key, name, *counters):
        found = original(key, name, *counters)
        if not isinstance(found, jax.core.Tracer):  # a tracer if only shapes are evaluated
            asked.append((name, tuple(np.asarray(jax.random.key_data(found)))))
        return found

    original = purerl.core.keys.fold_in_name
    algorithms, learning = purerl.algorithms, purerl.learning
    for module in (
        purerl.core.reductions,
        purerl.acting.rollout,
        learning.update,
        learning.rewards,
        algorithms.appo,
        algorithms.rnd,
    ):
        monkeypatch.setattr(module, "fold_in_name", recorded)
    train = KINDS_AND_OTHERS[kind](CFG.replace(num_steps=2, num_minibatches=2))
    with jax.disable_jit():
        state = train.init(KEY)
        for _ in range(2):
            state, _ = train.update(state)
    assert {name for name, _ in asked} == STREAMS | STREAMS_OF.get(kind, {"ppo/shuffle"})
    if kind in KINDS:
        assert len(asked) == 2 + 2 * (3 + CFG.num_epochs)
    assert len({key for _, key in asked}) == len(asked)


@pytest.mark.slow
@others
def test_every_algorithm_stays_float32_with_64_bits_enabled(kind):
    with jax.enable_x64(True):
        with pytest.warns(UserWarning, match="observations of float64"):
            train = OTHERS[kind]()
        before = jax.eval_shape(train.init, jax.random.key(0))
        after, _ = jax.eval_shape(train.update, before)
    kind_of = lambda x: (x.shape, x.dtype)
    assert jax.tree.map(kind_of, before) == jax.tree.map(kind_of, after)
    assert {x.dtype for x in jax.tree.leaves((after.params, after.opt_state))} <= {jnp.dtype("float32"), jnp.dtype("int32")}


@pytest.mark.slow
@others
def test_state_can_be_donated(kind):
    """The state holds no buffer twice, even if nothing was compiled."""
    train = OTHERS[kind]()
    state = train.init(KEY)
    pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state.replace(key=()))]
    assert len(set(pointers)) == len(pointers)


@pytest.mark.slow
@others
def test_scheduled_phases_stay_branches_under_vmap_over_seeds(kind):
    """A condition on a batched counter would become a select, which always computes both sides."""
    train = OTHERS[kind]()
    axes = train.seed_axes
    states = jax.eval_shape(jax.vmap(train.init, out_axes=axes), jax.random.split(KEY, 2))
    many = jax.vmap(train.update, in_axes=(axes,), out_axes=(axes, 0))
    # The branches of APPO are publishing and the target network.
    assert branches(many, states) == {"ppg": 1, "daac": 1, "appo": 2, "rnd": 0}[kind]


@pytest.mark.slow
@pytest.mark.each_landing("daac", "ppg")
@others
def test_zero_learning_rate_leaves_parameters_of_every_algorithm_unchanged(kind):
    zero = {"lr": 0.0} | ({"aux_lr": 0.0} if kind == "ppg" else {})
    train = OTHERS[kind]()
    train = tiny(train.cfg.replace(**zero))
    before, after = jax.jit(lambda key: (train.init(key).params, train(key).state.params))(KEY)
    assert digest(before) == digest(after)


@pytest.mark.slow
def test_ppo_run_stays_float32_with_64_bits_enabled():
    with jax.enable_x64(True), pytest.warns(UserWarning, match=r"observations of float64.*cast to float32"):
        state = jax.jit(tiny(CFG.replace(lr=np.float64(1e-3))))(jax.random.key(0)).state
    assert {x.dtype for x in jax.tree.leaves((state.params, state.actor.episode_return))} == {jnp.dtype("float32")}


def test_zero_learning_rate_trains_nothing_and_each_coefficient_has_an_effect():
    both = jax.jit(lambda cfg: (tiny(cfg).init(KEY).params, tiny(cfg)(KEY).state.params))
    run, start = (lambda cfg: both(cfg)[1]), both(CFG)[0]
    same = lambda a, b, group: all((x == y).all() for x, y in zip(*map(jax.tree.leaves, (a[group], b[group])), strict=True))
    still = run(CFG.replace(lr=0.0))
    assert same(still, start, "policy")
    assert same(still, start, "value")
    without = run(CFG.replace(vf_coef=0.0))
    assert same(without, start, "value")  # separate networks: the value learns from its own loss alone
    assert not same(without, start, "policy")
    assert not same(run(CFG.replace(ent_coef=0.0)), run(CFG.replace(ent_coef=1.0)), "policy")


def test_entropy_bonus_raises_the_entropy():
    from tests.helpers.probes import Probe

    class Worthless(Probe):
        def reward_of(self, state, action):
            return jnp.float32(0)

    cfg = CFG.replace(total_timesteps=1024, vf_coef=0.0, ent_coef=1.0, advantage_norm="none", lr=1e-2)
    entropy = purerl.summarize(jax.jit(purerl.make_train(cfg, env=Worthless()))(KEY).metrics)["entropy"]
    assert entropy[-1] > entropy[0]


def test_make_train_compiles_nothing_and_keeps_the_config():
    purerl.make_train(PPOConfig())  # the suite's first import
    cfg, copy = PPOConfig(), PPOConfig()
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    before = len(jax.live_arrays())
    purerl.make_train(cfg)
    assert [name for name in events if "backend_compile" in name] == []
    assert len(jax.live_arrays()) == before
    assert cfg == copy
