"""The built-in networks: the part that each config field makes, and custom networks in their place."""

import contextlib
import functools
import re
import warnings

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import purerl
from purerl import Network, Outputs, PPOConfig
from purerl.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from purerl.networks.actor_critic import actor_critic
from purerl.networks.distributions import Bernoulli, Categorical, DiagGaussian, MultiCategorical, TanhGaussian
from purerl.networks.encoding import encode
from tests.helpers.probes import Rich, Varied, acting
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
FLAT, IMAGE = jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((10, 10, 3), jnp.bool_)
THREE = Discrete(3)
BOX = Box(np.full(2, -1, np.float32), np.full(2, 1, np.float32))


def made(cfg=CFG, space=FLAT, actions=THREE):
    network = actor_critic(cfg, space, actions)
    obs = jax.tree.map(lambda x: jnp.ones((2, 5, *x.shape), x.dtype), space)
    params = jax.jit(network.init)(KEY, obs)
    return network, params, obs


def outputs(network, params, obs):
    return network.apply(params, (), obs, jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool))[0]


@pytest.mark.parametrize(
    ("actions", "distribution", "kind"),
    [
        (Discrete(3), "auto", Categorical),
        (MultiDiscrete((2, 3)), "auto", MultiCategorical),
        (MultiBinary(4), "auto", Bernoulli),
        (BOX, "auto", DiagGaussian),
        (BOX, "gaussian", DiagGaussian),
        (BOX, "tanh", TanhGaussian),
    ],
)
def test_every_kind_of_action_has_a_distribution(actions, distribution, kind):
    out = outputs(*made(CFG.replace(action_distribution=distribution), actions=actions))
    assert isinstance(out.policy, kind)
    action = out.policy.sample(out.policy.noise(KEY))
    assert (action.shape, action.dtype) == ((2, 5, *actions.shape), actions.dtype)
    assert out.policy.env_action(action, actions).shape == action.shape
    for x in (out.value, out.policy.log_prob(action), out.policy.entropy(), out.policy.kl(out.policy)):
        assert x.shape == (2, 5)
        assert x.dtype == jnp.float32
    np.testing.assert_allclose(out.policy.kl(out.policy), 0, atol=1e-6)


@pytest.mark.parametrize(
    ("cfg", "env", "says"),
    [
        ({"action_distribution": "tanh"}, Varied(), "is for Box actions, not Discrete"),
        ({"arch": "shared", "critic_obs": "secret"}, Rich(), "shows the policy"),
        ({"torso": "nature_cnn"}, Varied(), "at least 36 x 36"),
        ({"action_mask": "legal"}, Varied(), "which is no dict"),
        ({"action_mask": "legall"}, Rich(), "which has 'index', 'legal', 'secret', 'seen'"),
        ({"action_mask": "secret"}, Rich(), r"one flag for each of 5 actions, not \[6\]"),
        ({"action_mask": "legal"}, acting(Rich, "box")(), "only discrete actions can be masked"),
        ({"critic_obs": "x"}, Rich(), "critic_obs = 'x'"),
        ({"info": ("nothing",)}, Rich(), "'illegal', 'time'"),
    ],
)
def test_what_does_not_fit_is_refused(cfg, env, says):
    with pytest.raises(purerl.ConfigError, match=says):
        purerl.make_train(CFG.replace(**cfg), env=env)


def test_tanh_needs_bounds_and_so_do_random_actions():
    endless = Box(np.full(1, -np.inf, np.float32), np.full(1, np.inf, np.float32))
    env = acting(Varied, "box")()
    env.action_space = lambda params=None: endless
    for cfg, says in (
        (CFG.replace(action_distribution="tanh"), "finite bounds"),
        (CFG.replace(warmup_steps=64), "bounded action space"),
    ):
        with pytest.raises(purerl.ConfigError, match=says):
            purerl.make_train(cfg, env=env)


# --- observations -----------------------------------------------------------------------------------------------------


def test_entries_follow_one_another():
    space = {"b": jax.ShapeDtypeStruct((2, 2), jnp.int8), "a": Discrete(3), "c": jax.ShapeDtypeStruct((), jnp.float32)}
    obs = {"a": jnp.array([[2]]), "b": jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 2), "c": jnp.full((1, 1), 9.0)}
    np.testing.assert_array_equal(encode(obs, space)[0, 0], [0, 0, 1, 0, 1, 2, 3, 9])


def test_images_of_bytes_are_scaled_and_other_bytes_are_not():
    image, vector = jax.ShapeDtypeStruct((36, 36, 4), jnp.uint8), jax.ShapeDtypeStruct((3,), jnp.uint8)
    of = lambda space: encode(jnp.full((1, 1, *space.shape), 255, jnp.uint8), space)
    assert (of(image) == 1).all()
    assert (of(vector) == 255).all()


def test_the_critic_alone_sees_its_entry_and_nothing_sees_the_mask():
    train = purerl.make_train(CFG.replace(critic_obs="secret", action_mask="legal"), env=Rich())
    params = train.init(KEY).params
    obs = jax.tree.map(lambda x: x[None], train.init(KEY).actor.obs)
    inputs = {group: params[group]["torso"]["Dense_0"]["kernel"].shape[0] for group in params}
    assert inputs == {"policy": 4 + 3, "value": 4 + 3 + 6}
    before = outputs(train.network, params, obs)
    other = outputs(train.network, params, obs | {"secret": obs["secret"] + 1})
    assert digest(before.policy) == digest(other.policy)
    assert digest(before.value) != digest(other.value)
    legal = jnp.array([True, False, False, True, True])
    masked = outputs(train.network, params, obs | {"legal": jnp.broadcast_to(legal, obs["legal"].shape)})
    assert digest(masked.value) == digest(before.value)
    assert (masked.policy.logits[..., ~legal] < -1e8).all()


# --- architecture -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["separate", "shared", "detach"])
def test_what_the_value_learns_reaches_as_far_as_the_architecture_says(arch):
    network, params, obs = made(CFG.replace(arch=arch))
    gradient = jax.grad(lambda params: jnp.square(outputs(network, params, obs).value - 1).sum())(params)
    reached = {group for group, g in gradient.items() if any((x != 0).any() for x in jax.tree.leaves(g))}
    assert reached == {"separate": {"value"}, "shared": {"torso", "value"}, "detach": {"value"}}[arch]
    assert set(params) == ({"policy", "value"} if arch == "separate" else {"torso", "policy", "value"})


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("arch", ["separate", "shared"])
def test_prepared_parameters_give_the_same(arch, memory):
    network, params, obs = made(CFG.replace(arch=arch, memory=memory, memory_size=8))
    params = jax.tree.map(lambda x: x + 0.1 * jnp.arange(x.size).reshape(x.shape) / x.size, params)
    first = jnp.zeros((2, 5), bool)
    plain, prepared = (network.apply(p, network.initial_carry(5), obs, first) for p in (params, network.prepare(params)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), plain, prepared)
    assert (set(network.prepare(params)) > set(params)) == (arch == "separate")


@pytest.mark.parametrize("scheme", ["orthogonal", "xavier_uniform", "xavier_normal", "lecun"])
def test_weights_begin_as_the_scheme_says(scheme):
    _, params, _ = made(CFG.replace(init=scheme, hidden=(256, 128)))
    kernel = np.asarray(params["value"]["torso"]["Dense_1"]["kernel"])  # [256, 128]
    std = {"orthogonal": np.sqrt(2 / 256), "lecun": np.sqrt(1 / 256)}.get(scheme, np.sqrt(2 / (256 + 128)))
    np.testing.assert_allclose(kernel.std(), std, rtol=0.02)
    if scheme == "orthogonal":
        np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(128), atol=1e-4)
    if scheme == "xavier_uniform":
        assert np.abs(kernel).max() <= np.sqrt(6 / (256 + 128))
    policy = np.asarray(params["policy"]["head"]["Linear_0"]["kernel"])
    assert np.abs(policy).max() < 0.05  # near uniform whatever the scheme
    assert not np.any([np.any(x) for path, x in flax.traverse_util.flatten_dict(params).items() if path[-1] == "bias"])


def test_the_networks_of_images():
    """The sizes are the papers': 20 x 20, 9 x 9 and 7 x 7 after the three layers of Mnih et al."""
    nature = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
    kernels = jax.eval_shape(lambda: made(CFG.replace(hidden=(512,)), nature)[1])["policy"]["torso"]
    shapes = [kernels[f"Conv_{i}"]["kernel"].shape for i in range(3)] + [kernels["MLP_0"]["Dense_0"]["kernel"].shape]
    assert shapes == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (7 * 7 * 64, 512)]
    _, params, _ = made(CFG, IMAGE)
    assert params["policy"]["torso"]["Conv_0"]["kernel"].shape == (3, 3, 3, 16)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (4, 2), (8, 4)])
def test_convolutions_are_those_of_jax(size, stride):
    from purerl.networks.layers import Conv

    x, kernel = jax.random.normal(KEY, (2, 21, 18, 3)), jax.random.normal(KEY, (size, size, 3, 5))
    got = Conv(5, size, stride).apply({"params": {"kernel": kernel, "bias": jnp.arange(5.0)}}, x)
    layout = ("NHWC", "HWIO", "NHWC")
    want = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=layout)
    np.testing.assert_allclose(got, want + jnp.arange(5.0).reshape(1, 1, 1, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_every_product_of_matrices_is_as_precise_as_asked(precision):
    train = tiny(CFG.replace(matmul_precision=precision))
    state, obs = jax.eval_shape(train.init, KEY), jnp.zeros((2, *train.env.observation_space.shape))
    programs = [
        jax.make_jaxpr(train.init)(KEY),
        jax.make_jaxpr(train.update)(state),
        jax.make_jaxpr(lambda state: train.evaluate(state, KEY, num_episodes=2, max_steps=3))(state),
        jax.make_jaxpr(lambda state: train.policy(state)((), obs, jnp.ones(2, bool), KEY))(state),
    ]
    found = re.findall(r"dot_general\[(.*?)\] \S+ \S+\n", "\n".join(map(str, programs)), re.DOTALL)
    assert len(found) > 20
    assert {"Precision.HIGHEST" in options for options in found} == {precision == "highest"}


@pytest.mark.slow
def test_half_precision_stays_in_the_torsos():
    """Check reliability L1 7: parameters, outputs, advantages, statistics and everything kept are float32."""
    cfg = CFG.replace(compute_dtype="bfloat16", normalize_obs=True, normalize_reward=True, normalize_value=True)
    train = tiny(cfg)
    program = str(jax.make_jaxpr(train.update)(train.init(KEY)))
    assert "bf16" in program
    state, metrics = jax.eval_shape(train.update, train.init(KEY))
    assert not any(x.dtype == jnp.bfloat16 for x in jax.tree.leaves((state, metrics)))
    out = outputs(*made(cfg))
    assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype("float32")}
    single = outputs(*made(cfg.replace(compute_dtype="float32")))
    np.testing.assert_allclose(out.value, single.value, rtol=0.05, atol=0.02)
    assert (out.value != single.value).any()
    assert "bf16" not in str(jax.make_jaxpr(tiny().update)(tiny().init(KEY)))


# --- other networks ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_flax_nnx_by_split_and_merge():
    class Small(nnx.Module):
        def __init__(self, rngs):
            self.torso, self.policy, self.value = (
                nnx.Linear(4, 8, rngs=rngs),
                nnx.Linear(8, 2, rngs=rngs),
                nnx.Linear(8, 1, rngs=rngs),
            )

        def __call__(self, obs):
            x = nnx.tanh(self.torso(obs))
            return Outputs(Categorical(self.policy(x)), self.value(x)[..., 0])

    graph, _ = nnx.split(Small(nnx.Rngs(0)))

    def init(key, obs):
        return {"all": nnx.to_pure_dict(nnx.state(Small(nnx.Rngs(key))))}

    def apply(params, carry, obs, first):
        state = nnx.state(nnx.eval_shape(lambda: Small(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params["all"])
        return nnx.merge(graph, state)(obs), carry

    train = tiny(network=Network(init, apply))
    start, end = jax.jit(lambda key: (train.init(key).params, train(key).state.params))(KEY)
    assert digest(start) != digest(end)
    assert set(end) == {"all"}


@pytest.mark.slow
def test_named_extra_networks_are_groups_like_the_others():
    """MetaBox's feature extractor is a third network that both others read, with its own norm and step."""

    def init(key, obs):
        keys = jax.random.split(key, 3)
        shapes = {"features": (4, 8), "policy": (8, 2), "value": (8,)}
        return {name: 0.3 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def apply(params, carry, obs, first):
        x = jnp.tanh(obs @ params["features"])
        return Outputs(Categorical(x @ params["policy"]), x @ params["value"]), carry

    train = tiny(CFG.replace(grad_clip="per_network"), network=Network(init, apply))
    result = jax.jit(train)(KEY)
    assert purerl.summarize(result.metrics)["grad_norm/features"].all()
    assert digest(result.state.params["features"]) != digest(train.init(KEY).params["features"])


def test_a_network_may_read_the_tree_of_an_observation():
    def init(key, obs):
        assert set(obs) == {"seen", "index", "legal", "secret"}
        return {"policy": 0.1 * jax.random.normal(key, (4, 5)), "value": jnp.zeros(6)}

    def apply(params, carry, obs, first):
        policy = MultiCategorical(obs["seen"] @ params["policy"], (2, 3))
        return Outputs(policy, obs["secret"] @ params["value"]), carry

    cfg = CFG.replace(action_mask="legal", info=("illegal",))
    result = jax.jit(purerl.make_train(cfg, env=Rich(), network=Network(init, apply)))(KEY)
    assert result.state.params["value"].any()
    assert not purerl.summarize(result.metrics)["info/illegal"].any()


def test_the_default_config_has_the_networks_of_the_37_details():
    _, params, _ = made(PPOConfig())
    assert jax.tree.map(jnp.shape, params["value"]["torso"]) == {
        "Dense_0": {"kernel": (4, 64), "bias": (64,)},
        "Dense_1": {"kernel": (64, 64), "bias": (64,)},
    }


class Half(nn.Module):
    """A network that computes in another dtype, with a head for PPG."""

    dtype: str

    @nn.compact
    def __call__(self, obs):
        dense = lambda size, name: nn.Dense(size, dtype=self.dtype, name=name)(obs)
        return dense(2, "policy"), dense(1, "value"), {"aux_value": dense(1, "aux_value")[..., 0]}


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", "2"), ("float16", "0.25"), ("float64", None)])
def test_outputs_of_any_network_are_float32(dtype, step):
    said = pytest.warns(UserWarning, match=f"outputs of {dtype}.* multiples of {step}") if step else contextlib.nullcontext()
    with jax.enable_x64(dtype == "float64"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "env = observations of float64")
        with said:
            train = tiny(network=purerl.from_linen(Half(dtype)))
        state = jax.eval_shape(train.init, KEY)
        obs, first = jax.ShapeDtypeStruct((1, 4, 4), jnp.float32), jax.ShapeDtypeStruct((1, 4), bool)
        outputs, _ = jax.eval_shape(train.network.apply, state.params, (), obs, first)
    assert {x.dtype for x in jax.tree.leaves(outputs)} == {np.dtype(np.float32)}


def test_probabilities_of_a_network_in_bfloat16_are_not_rounded():
    """Probabilities add up to 1 as in float32."""
    with pytest.warns(UserWarning, match="outputs of bfloat16"):
        train = tiny(network=purerl.from_linen(Half("bfloat16")))
    obs = jax.random.normal(KEY, (1, 64, 4))
    policy = train.network.apply(train.network.init(KEY, obs), (), obs, jnp.ones((1, 64), bool))[0].policy
    total = sum(jnp.exp(policy.log_prob(jnp.full((1, 64), action, jnp.int32))) for action in range(2))
    np.testing.assert_allclose(total, 1, atol=1e-6)
