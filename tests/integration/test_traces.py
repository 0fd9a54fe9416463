"""`make_train` called inside traces, with every kind of object that a user can pass. Nothing is compiled."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import purerl
from purerl.runs.trainer import Trainer
from tests.helpers.probes import Rich, Varied, acting
from tests.ideas import own_memory, own_network, residual_equinox, residual_linen, residual_nnx, simulator
from tests.ideas.dm_env_like import Bare

KEY = jax.random.key(0)
SIZES = {"total_timesteps": 16, "num_envs": 2, "num_steps": 4, "num_minibatches": 1, "num_epochs": 1}
CFG = purerl.PPOConfig(**SIZES)
LEVELS = {"num_levels": 2}


class Walk:
    """A single environment with actions of any space, and observations that may be a dict with a mask."""

    max_steps = 5

    def __init__(self, space, mask=0):
        self.action_space, self._mask = space, mask

    def reset(self, key):
        at = jax.random.uniform(key, (2,))
        return at, self._observe(at)

    def step(self, key, at, action):
        at = jnp.clip(at + jnp.float32(0.1) * sum(x.astype(jnp.float32).mean() for x in jax.tree.leaves(action)), -2, 2)
        return at, self._observe(at), -jnp.abs(at).sum(), (at > 1).all(), False, {"far": at[0]}

    def _observe(self, at):
        return {"at": at, "index": jnp.int32(0), "action_mask": jnp.ones(self._mask, bool)} if self._mask else at


def bounds(low, high):
    """Return a Box whose bounds are JAX arrays."""
    return purerl.Box(jnp.full(2, low), jnp.full(2, high))


class Plain(nn.Module):
    """The network in the documentation of `from_linen`: its groups have flax's own names."""

    @nn.compact
    def __call__(self, obs):
        x = nn.swish(nn.Dense(8)(obs))
        return nn.Dense(2)(x), nn.Dense(1)(x)


class ByNnx(nnx.Module):
    def __init__(self, rngs):
        self.policy, self.value = nnx.Linear(4, 2, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, obs):
        return self.policy(obs), self.value(obs)


def unclipped(outputs, old, advantage, cfg):
    return -jnp.exp(outputs.policy.log_prob(old.action) - old.log_prob) * advantage


def weights():
    """Return a network of two plain functions."""
    init = lambda key, obs: {"policy": jax.random.normal(key, (4, 2)), "value": jnp.zeros(4)}
    policy = lambda params, obs: purerl.distributions.Categorical(obs @ params["policy"])
    apply = lambda params, carry, obs, first: (purerl.Outputs(policy(params, obs), obs @ params["value"]), carry)
    return purerl.Network(init, apply)


def halved(steps, cfg):
    return purerl.advantages.gae(steps, cfg.gamma / 2, cfg.gae_lambda)


def surprise(state, steps):
    return jnp.abs(steps.next_obs[..., 0] - state), state + jnp.float32(1)


def functions():
    return {
        "env": Varied(),
        "advantage": halved,
        "policy_loss": lambda outputs, old, advantage, cfg: (
            -jnp.exp(outputs.policy.log_prob(old.action) - old.log_prob) * advantage
        ),
        "extra_loss": lambda params, outputs, batch, cfg: (jnp.square(outputs.value).mean(), {}),
        "optimizer": optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam()),
        "lr_schedule": optax.linear_schedule(1e-3, 0.0, 10),
        "reward_shaper": lambda reward, steps: reward * jnp.minimum(steps, 1),
        "intrinsic": (lambda key, obs: jnp.float32(0), surprise),
        "measure": lambda state, batch: {"largest": jnp.abs(batch.steps.advantage).max()},
    }


wrapped = lambda space, **options: lambda: {"env": purerl.wrap_env(Walk(space, **options))}
probe = lambda kind: lambda: {"env": acting(Varied, kind)()}
built = lambda **objects: lambda: {"env": Varied(), **{name: make() for name, make in objects.items()}}
# For each kind: fields of the config, and a function that makes the objects.
ENVIRONMENTS = {
    "wrapped, discrete": (LEVELS, lambda: {"env": purerl.wrap_env(Bare(), max_steps=30)}),
    "wrapped, multi-discrete": (LEVELS, wrapped(purerl.MultiDiscrete((2, 3)))),
    "wrapped, multi-binary": (LEVELS, wrapped(purerl.MultiBinary(3))),
    "wrapped, mixed": (LEVELS | {"warmup_steps": 8}, wrapped((bounds(-1.0, 1.0), purerl.Discrete(2)))),
    "wrapped, box": (LEVELS, wrapped(purerl.Box(-np.ones(2, np.float32), np.ones(2, np.float32)))),
    "wrapped, box of JAX": (LEVELS | {"action_distribution": "tanh", "warmup_steps": 8}, wrapped(bounds(-1.0, 1.0))),
    "wrapped, box with one bound": (LEVELS, wrapped(bounds(0.0, jnp.inf))),
    "wrapped, dict with a mask": (LEVELS | {"action_mask": "action_mask"}, wrapped(purerl.Discrete(3), mask=3)),
    "like gymnax, discrete": (LEVELS, probe("discrete")),
    "like gymnax, multi-discrete": (LEVELS, probe("multi_discrete")),
    "like gymnax, multi-binary": (LEVELS, probe("multi_binary")),
    "like gymnax, box": (LEVELS, probe("box")),
    "like gymnax, dict": (LEVELS | {"action_mask": "legal", "critic_obs": "secret"}, lambda: {"env": Rich()}),
    "gymnax, bounds from its parameters": (LEVELS, lambda: {"env": gymnax.make("Pendulum-v1")[0]}),
    "batch, box": (LEVELS, lambda: {"env": simulator.simulator}),
}
OTHERS = {
    "network of linen": ({}, built(network=lambda: purerl.from_linen(Plain))),
    "recurrent network of linen": ({}, built(network=lambda: purerl.from_linen(own_network.Recurrent(2)))),
    "network of nnx": ({}, built(network=lambda: purerl.from_nnx(ByNnx))),
    "network of functions": ({}, built(network=weights)),
    "torso and recurrent layer of linen": (
        {},
        built(torso=lambda: residual_linen.Residual(8), memory=lambda: own_memory.MovingAverage(8)),
    ),
    "torso of nnx": ({}, built(torso=lambda: residual_nnx.residual)),
    "torso of equinox": ({}, built(torso=lambda: residual_equinox.residual)),
    "functions": ({}, functions),
}
KINDS = ENVIRONMENTS | OTHERS


@pytest.fixture(autouse=True)
def ranks():
    """Allow the rank promotion that flax's modules rely on, unlike purerl's own code."""
    with jax.numpy_rank_promotion("allow"):
        yield


def trained(cfg, **objects):
    """Run an update and an evaluation."""
    train = purerl.make_train(cfg, **objects)
    state, metrics = train.update(train.init(KEY))
    return metrics, train.evaluate(state, KEY, 2)


def acted(cfg, **objects):
    """Evaluate the first state."""
    train = purerl.make_train(cfg, **objects)
    return train.evaluate(train.init(KEY), KEY, 2)


def in_jit(cfg, make, run):
    """Make the objects inside `jit`, too."""
    return jax.eval_shape(lambda: run(cfg, **make()))


def as_an_argument(cfg, make, run):
    """Trace every float of the config."""
    objects = make()
    return jax.eval_shape(lambda cfg: run(cfg, **objects), cfg)


def in_vmap(cfg, make, run):
    objects, configs = make(), jax.vmap(lambda lr: cfg.replace(lr=lr))(jnp.array([1e-3, 1e-2]))
    shapes = jax.eval_shape(jax.vmap(lambda cfg: run(cfg, **objects)), configs)
    assert all(x.shape[0] == 2 for x in jax.tree.leaves(shapes))


def in_a_sweep(cfg, make, run):
    """Trace as `purerl.sweep` and `purerl.tune` make their programs, up to the compiled part."""
    (program,) = purerl.sweep(cfg, {"lr": [1e-3, 1e-2]}).programs()
    Trainer(program.cfg, 0, 1, False, make(), 1).evaluation(2)


def in_an_evaluation(cfg, make, run):
    """Trace an evaluation, which makes the environments again if there are levels."""
    train = purerl.make_train(cfg, **make())
    return jax.eval_shape(lambda state: train.evaluate(state, KEY, 2), jax.eval_shape(train.init, KEY))


NEAR = ("wrapped, box", "wrapped, box of JAX", "gymnax, bounds from its parameters", "batch, box", "network of linen")
OFTEN = ("wrapped, box", "network of linen")  # in the tests of every commit
rarely = lambda *case: pytest.param(*case, marks=() if case[1] in NEAR else pytest.mark.long)
CASES = [
    *((in_jit, kind, acted) for kind in KINDS),
    *(rarely(in_vmap, kind, acted if kind in ENVIRONMENTS else trained) for kind in KINDS),
    *((in_a_sweep, kind, None) for kind in NEAR),
    *(rarely(in_an_evaluation, kind, None) for kind in ENVIRONMENTS),
]


@pytest.mark.parametrize("kind", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.slow) for x in NEAR])
def test_evaluation_works_with_a_traced_config(kind):
    changes, make = KINDS[kind]
    episodes = as_an_argument(CFG.replace(**changes), make, acted)
    assert episodes.returns.shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize(("context", "kind", "run"), CASES)
def test_make_train_works_inside_traces(context, kind, run):
    changes, make = KINDS[kind]
    context(CFG.replace(**changes), make, run)


@pytest.mark.slow
def test_swept_bounds_are_not_checked():
    """Bounds computed from a swept parameter are tracers."""
    cfg = CFG.replace(env="Pendulum-v1")
    torques = jax.vmap(lambda x: cfg.replace(env_params={"max_torque": x}))(jnp.array([1.0, 2.0]))
    assert jax.eval_shape(jax.vmap(acted), torques).returns.shape == (2, 2)


def test_known_bounds_are_checked_inside_a_trace():
    """Concrete bounds stay concrete inside a trace, so invalid ones are refused."""
    wrong = {"env": simulator.simulator._replace(action_space=bounds(1.0, 1.0))}
    with pytest.raises(purerl.ConfigError, match="needs low < high"):
        in_jit(CFG, lambda: wrong, acted)
    with pytest.raises(purerl.ConfigError, match="needs finite action bounds"):
        as_an_argument(CFG.replace(action_distribution="tanh"), KINDS["wrapped, box with one bound"][1], acted)


def test_known_fields_stay_concrete_inside_a_trace():
    """JAX arrays in a config are numbers, not tracers, if the config is not an argument."""
    fields = {"clip_eps": 0.2, "target_kl": jnp.inf, "ent_coef": purerl.PPOConfig().ent_coef, "tau": 1.0}
    cfg = purerl.APPOConfig(**SIZES, clip_schedule="linear", warmup_steps=8, **{n: jnp.float32(x) for n, x in fields.items()})
    in_jit(cfg, lambda: {"env": Varied()}, acted)
    with pytest.raises(purerl.ConfigError, match=r"critic_lr_scale = 2\.0: .* parameter group 'value'"):
        in_jit(CFG.replace(critic_lr_scale=jnp.float32(2)), KINDS["network of linen"][1], acted)
