"""Computations that differ between accelerator and CPU: both variants on this machine."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purerl
from purerl.acting.rollout import collect, reset_actor
from purerl.core.platform import FEW, by_platform, means, pack, scan, sums, unpack, where_any
from purerl.envs import make_env
from purerl.learning.advantages import gae
from purerl.learning.optimizers import Optimizer, vectors_of
from purerl.learning.shuffle import permutation
from purerl.networks.actor_critic import actor_critic
from purerl.networks.initializers import initialize
from purerl.networks.layers import Linear
from tests.helpers.configs import CONFIGS
from tests.helpers.probes import Rich, Varied
from tests.helpers.programs import branches, on_accelerator
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


@pytest.fixture
def both(monkeypatch):
    """Return a function's results by the CPU's variant, and by the accelerator's."""

    def run(function, *args):
        here = jax.device_get(jax.jit(function)(*args))
        with monkeypatch.context() as patch:
            patch.setattr(jax.lax, "platform_dependent", on_accelerator)
            return here, jax.device_get(jax.jit(lambda *args: function(*args))(*args))

    return run


def same(pair, tolerance=1e-6):
    assert jax.tree.structure(pair[0]) == jax.tree.structure(pair[1])
    for here, there in zip(*map(jax.tree.leaves, pair), strict=True):
        assert here.dtype == there.dtype
        np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance)


def test_fixture_runs_the_variants_of_both_platforms(both):
    here, there = both(lambda x: by_platform(x, cpu=lambda x: x + 1, accelerator=lambda x: x - 1), jnp.float32(1))
    assert (here, there) == (2, 0)


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.each_landing(
    "{}-separate",
    "{'torso': 'cnn'}-shared",
    "{'memory': 'gru'}-shared",
    "{'memory': 'lstm'}-separate",
    "{'memory': 'lru'}-separate",
)
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["separate", "shared"])
@pytest.mark.parametrize("changes", [{}, {"torso": "cnn"}, {"memory": "gru"}, {"memory": "lstm"}, {"memory": "lru"}], ids=str)
def test_networks_and_gradients_agree_across_platforms(both, arch, changes):
    shape = (10, 10, 4) if "torso" in changes else (5,)
    cfg = CFG.replace(arch=arch, memory_size=8, **changes)
    network = actor_critic(cfg, jax.ShapeDtypeStruct(shape, jnp.float32), purerl.Discrete(3))
    obs, first = jax.random.normal(KEY, (6, 4, *shape)), jax.random.bernoulli(KEY, 0.3, (6, 4))
    params = network.init(KEY, obs[:1])

    def outputs_and_gradient(params):
        def loss(params):
            outputs, carry = network.apply(params, network.initial_carry(4), obs, first)
            return jnp.square(outputs.value).mean() + outputs.policy.entropy().mean(), (outputs, carry)

        return jax.value_and_grad(loss, has_aux=True)(params)

    same(both(outputs_and_gradient, params))


@pytest.mark.parametrize("scheme", ["orthogonal", "lecun"])
def test_initial_weights_agree_across_platforms_and_under_vmap(both, scheme):
    params = {"policy": {"kernel": jnp.zeros((5, 3)), "bias": jnp.ones(3)}}
    draw = jax.vmap(lambda key: initialize(key, params, scheme, lambda path: 2.0))
    here, there = both(draw, jax.random.split(KEY, 4))
    same((here, there), 1e-5)
    alone = initialize(jax.random.split(KEY, 4)[2], params, scheme, lambda path: 2.0)
    same((alone, jax.tree.map(lambda x: x[2], here)), 1e-6)


@pytest.mark.each_landing("gru-16-4")
@pytest.mark.slow
@pytest.mark.parametrize(("length", "count"), [(5, 1), (16, 4)])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_rollouts_agree_however_final_observations_are_stored(both, memory, length, count):
    known = make_env("", (), {}, Varied())._replace(truncates_after=5)
    network = actor_critic(CFG.replace(memory=memory, memory_size=8), known.observation_space, known.action_space)
    actor = reset_actor(known, network, 4, KEY)
    params = network.init(KEY, actor.obs[None])
    found = []
    for env in (known, known._replace(truncates_after=None)):
        found += both(lambda actor: collect(env, network, params, actor, KEY, length), actor)  # noqa: B023
    steps = found[0][1].steps
    assert 0 < steps.truncated.sum(0).max() <= count
    for other in found[1:]:
        same((found[0], other))


def test_shuffles_agree_across_platforms(both):
    here, there = both(lambda key: [permutation(key, n) for n in (1, 2, 16, 500)], KEY)
    assert all((x == y).all() for x, y in zip(here, there, strict=True))


def test_advantages_agree_across_platforms(both):
    T, B = 50, 3
    flags = jax.random.bernoulli(KEY, 0.1, (2, T, B))
    value, following, reward = jax.random.normal(KEY, (3, T, B))
    steps = purerl.Transition((), flags[0], (), (), value, reward, flags[0], flags[1], following)
    same(both(lambda steps: gae(steps, 0.99, 0.95), steps))


def test_scans_agree_across_platforms(both):
    step = lambda carry, x: (carry * x, carry + x)
    for options in ({"unroll": 4}, {"recomputes": True}, {"unroll": 3, "reverse": True}):
        same(both(lambda xs: scan(step, jnp.float32(1), xs, **options), jnp.linspace(0.5, 1.5, 10)))  # noqa: B023


def test_where_any_always_computes_its_branch_on_an_accelerator(both):
    needed = lambda flags: where_any(flags, lambda: jnp.float32(1), jnp.float32(0))
    assert both(needed, jnp.array([False, False])) == (0, 1)
    assert both(needed, jnp.array([False, True])) == (1, 1)


def test_packing_keeps_every_bit():
    bits = jax.random.bits(KEY, (3, 5, 2))
    tree = {
        "float": jax.lax.bitcast_convert_type(bits, jnp.float32),
        "int": bits.astype(jnp.int32)[..., 0],
        "bits": bits,
        "flag": bits[..., 0] > np.uint32(2**31),
        "bytes": bits.astype(jnp.uint8),
        "half": bits.astype(jnp.float32).astype(jnp.bfloat16),
        "key": jax.random.split(KEY, (3, 5)),
        "large": jnp.ones((3, 5, 100)),
        "scalar": jnp.float32(1),
        "none": (),
    }
    packed = jax.jit(lambda tree: pack(tree, (3, 5)))(tree)
    assert packed.arrays[0].shape == (3, 5, 2 + 1 + 2 + 1)
    assert len(packed.arrays) == 6
    after = jax.jit(unpack)(packed)
    for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(after), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    row = unpack(jax.tree.map(lambda x: x[1], pack({"a": bits, "b": bits[..., 0] > np.uint32(5)}, (3, 5))))
    assert (row["a"] == bits[1]).all()
    assert row["b"].dtype == bool


# --- algorithms -------------------------------------------------------------------------------------------------------


@pytest.mark.each_landing("ppo", "gru", "ppg", "appo", "kl adaptive")
@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_accelerator_update_branches_only_for_scheduled_phases(name):
    train = tiny(CONFIGS[name])
    state = jax.eval_shape(train.init, KEY)
    expected = {"ppg": 1, "appo": 2, "appo with memory": 2}.get(name, 0)  # scheduled phases, outside of loops
    assert branches(train.update, state, platform="accelerator") == expected
    assert branches(train.update, state) > expected  # resets, at least


@pytest.mark.slow
@pytest.mark.each_landing("ppg")
@pytest.mark.parametrize("name", CONFIGS)
def test_updates_agree_across_platforms(both, name):
    train = tiny(CONFIGS[name])

    def run(key):
        state, metrics = train.update(train.update(train.init(key))[0])
        return state.params, metrics

    same(both(run, KEY), 1e-5)


@pytest.mark.long
def test_updates_with_dict_observations_agree_across_platforms(both):
    changes = {"action_mask": "legal", "critic_obs": "secret", "normalize_obs": True, "normalize_reward": True}
    train = purerl.make_train(CFG.replace(**changes), env=Rich())
    same(both(lambda key: train.update(train.update(train.init(key))[0])[0].params, KEY), 1e-5)


def test_grouped_means_and_gradients_agree_across_platforms(both):
    arrays = tuple(jax.random.normal(jax.random.key(i), (3, 40)) for i in range(4))

    def weighted(arrays):
        found = means(dict(zip("abcd", arrays, strict=True)))
        return found["a"] + 2 * found["b"] * found["c"], found

    same(both(lambda arrays: jax.value_and_grad(weighted, has_aux=True)(arrays), arrays), 1e-5)
    of_rows = both(lambda arrays: jax.vmap(lambda arrays: sums(arrays))(arrays), arrays)
    same(of_rows, 1e-5)
    np.testing.assert_allclose(of_rows[1][3], arrays[3].sum(-1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, FEW + 1])
def test_linear_layer_and_gradient_agree_across_platforms(both, size):
    x, target = jax.random.normal(KEY, (50, 16)), jax.random.normal(jax.random.key(1), (50, size))
    params = {"kernel": jax.random.normal(KEY, (16, size)), "bias": jnp.arange(size, dtype=jnp.float32)}
    loss = lambda params, x: jnp.square(Linear(size).apply({"params": params}, x) - target).mean()
    pair = both(jax.value_and_grad(loss, argnums=(0, 1)), params, x)
    same(pair, 1e-4)
    plain = jax.value_and_grad(lambda p, x: jnp.square(x @ p["kernel"] + p["bias"][None] - target).mean(), argnums=(0, 1))
    same((pair[1], jax.device_get(plain(params, x))), 1e-4)


def test_squared_norm_of_each_group_is_exact_on_both_platforms(both):
    params = {"policy": {"w": jnp.arange(6.0)}, "value": {"b": jnp.ones(2), "w": jnp.full((2, 2), 3.0)}}
    vectors = vectors_of(params, Optimizer(optax.identity(), elementwise=True))
    assert vectors.ends is not None
    for norms in both(lambda params: vectors.squared_norms(vectors.flatten(params)), params):
        assert {group: float(x) for group, x in norms.items()} == {"policy": 55, "value": 38}
