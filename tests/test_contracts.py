"""What every run keeps to, whatever it trains: strict modes of JAX, distinct random streams, a fixed point of the state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
import purerl.algorithms.ppo
import purerl.phases
import purerl.rollout
from purerl import PPOConfig
from tests.recurrent import running_sum
from tests.tiny import CFG, tiny

KEY = jax.random.key(0)
KINDS = {
    "discrete": lambda cfg=CFG: tiny(cfg),
    "box": lambda cfg=CFG: tiny(cfg, box=True),
    "memory": lambda cfg=CFG: tiny(cfg, network=running_sum(2, 4)),
}
kinds = pytest.mark.parametrize("kind", KINDS)
slow = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("box", "memory")]
slow_but_one = pytest.mark.parametrize("kind", ["discrete", *slow])


@slow_but_one
def test_strict_modes(kind):
    """No leaked tracer, no NaN, no implicit promotion of rank or dtype, no key used twice."""
    with (
        jax.checking_leaks(),
        jax.debug_nans(True),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
    ):
        with jax.debug_key_reuse(True):
            train = KINDS[kind]()
            result = jax.jit(train)(jax.random.key(0))
            episodes = train.evaluate(result.state, jax.random.key(1), 4, max_steps=3)
        # JAX 0.10 takes the operands of a `cond` under `vmap` for consumed in its own rewriting, so not with `debug_key_reuse`.
        jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(2), 2))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((result.metrics, episodes)))


@kinds
def test_a_limit_of_infinity_is_no_nan(kind):
    cfg = CFG.replace(max_grad_norm=jnp.inf, clip_eps=jnp.inf, value_clip_eps=jnp.inf)
    with jax.debug_nans(True):
        result = jax.jit(KINDS[kind](cfg))(KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.metrics))


@kinds
def test_the_state_is_a_fixed_point(kind):
    """Shapes, dtypes and weak types after an update are those before it: nothing recompiles, and `cond` accepts both."""
    train = KINDS[kind]()
    before = jax.eval_shape(train.init, KEY)
    after, _ = jax.eval_shape(train.update, before)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype, old.weak_type) == (new.shape, new.dtype, new.weak_type), jax.tree_util.keystr(path)
        assert not old.weak_type, jax.tree_util.keystr(path)


@slow_but_one
def test_all_random_streams_of_an_update_are_distinct(kind, monkeypatch):
    """`debug_key_reuse` does not see two equal `fold_in`s, so every key that a stream gives is collected, loops unrolled."""
    asked = []

    def recorded(key, name, *counters):
        found = original(key, name, *counters)
        asked.append((name, tuple(np.asarray(jax.random.key_data(found)))))
        return found

    original = purerl.rollout.stream
    for module in (purerl.rollout, purerl.phases, purerl.algorithms.ppo):
        monkeypatch.setattr(module, "stream", recorded)
    train = KINDS[kind](CFG.replace(num_steps=2, num_minibatches=2))
    state = train.init(KEY)
    with jax.disable_jit():
        for _ in range(2):
            state, _ = train.update(state)
    assert {name for name, _ in asked} == {"start", "params", "rollout", "action", "environment", "ppo/shuffle"}
    assert len(asked) == 2 + 2 * (3 + CFG.num_epochs)
    assert len({key for _, key in asked}) == len(asked)


def test_everything_stays_float32_with_64_bits_enabled():
    with jax.enable_x64(True), pytest.warns(UserWarning, match=r"observations of float64.*cast to float32"):
        state = jax.jit(tiny(CFG.replace(lr=np.float64(1e-3))))(jax.random.key(0)).state
    assert {x.dtype for x in jax.tree.leaves((state.params, state.actor.episode_return))} == {jnp.dtype("float32")}


def test_a_rate_of_zero_moves_nothing_and_every_coefficient_moves_something():
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


def test_the_entropy_bonus_raises_the_entropy():
    from tests.probes import Probe

    class Worthless(Probe):
        def reward_of(self, state, action):
            return jnp.float32(0)

    cfg = CFG.replace(total_timesteps=1024, vf_coef=0.0, ent_coef=1.0, advantage_norm="none", lr=1e-2)
    entropy = purerl.summarize(jax.jit(purerl.make_train(cfg, env=Worthless()))(KEY).metrics)["entropy"]
    assert entropy[-1] > entropy[0]


def test_making_a_run_compiles_nothing_and_leaves_the_config_alone():
    purerl.make_train(PPOConfig())  # the suite's first import
    cfg, copy = PPOConfig(), PPOConfig()
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    before = len(jax.live_arrays())
    purerl.make_train(cfg)
    assert [name for name in events if "backend_compile" in name] == []
    assert len(jax.live_arrays()) == before
    assert cfg == copy
