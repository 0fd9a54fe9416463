"""Invalid inputs by field and case, each with expected parts of its error message.

The cases are data without asserts, so that they run with and without Python's `-O`, which removes asserts.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces

import purerl
from purerl.core.types import Network, Outputs
from purerl.networks.distributions import Categorical
from tests.helpers import probes, wrong_objects

KEY = jax.random.key(0)
FLAGS = (jnp.float32(0), jnp.array(False), jnp.array(False))


def config(**fields):
    return lambda: purerl.make_train(purerl.PPOConfig(**fields))


def broken(**changes):
    """Return a call of `make_train` with a probe that has some methods replaced."""
    return lambda: purerl.make_train(purerl.PPOConfig(), env=type("Broken", (probes.Constant,), changes)())


def stepping(values):
    """Return a call of `make_train` with an environment without a base class, whose step returns `values(obs, state)`."""
    methods = {
        "default_params": None,
        "reset": lambda self, key, params: (jnp.zeros(2), jnp.int32(0)),
        "step": lambda self, key, state, action, params: values(jnp.zeros(2), state),
        "action_space": lambda self, params: spaces.Discrete(2),
    }
    return lambda: purerl.make_train(purerl.PPOConfig(), env=type("Public", (), methods)())


def network(actions=2, value=lambda v: v, width=1, result=dict):
    def apply(params, carry, obs, first):
        return Outputs(Categorical(jnp.zeros((*first.shape, actions))), value(jnp.zeros(first.shape))), carry

    net = Network(lambda key, obs: result({"policy": jnp.zeros(width)}), apply)
    return lambda: purerl.make_train(purerl.PPOConfig(), network=net)


class Grows(probes.Constant):
    """A probe whose step returns observations and states of other shapes and dtypes than its reset."""

    def step_env(self, key, state, action, params):
        _, state, *rest = super().step_env(key, state, action, params)
        return jnp.ones(2), state.replace(kind=jnp.float32(0)), *rest


class Listed(probes.Constant):
    """A probe whose step changes the structure of its state."""

    def step_env(self, key, state, action, params):
        obs, state, *rest = super().step_env(key, state, action, params)
        return obs, state.replace(kind=(state.kind, state.kind)), *rest


@struct.dataclass
class Named:
    time: jax.Array
    name: str


class Objects(probes.Constant):
    """A probe whose state holds a string."""

    def reset_env(self, key, params):
        return jnp.ones(1), Named(jnp.int32(0), "agent")


class Endless(probes.Constant):
    """A probe without a known time limit."""

    @property
    def default_params(self):
        return None

    def is_truncated(self, state, params):
        return jnp.array(False)


def evaluate_endless():
    train = purerl.make_train(purerl.PPOConfig(), env=Endless())
    return jax.eval_shape(lambda key: train.evaluate(train.init(key), key), KEY)


def key_of(key):
    return lambda: purerl.make_train(purerl.PPOConfig()).init(key)


def sweep(values):
    return lambda: purerl.validate(jax.vmap(lambda lr: purerl.PPOConfig().replace(lr=lr))(values))


RATES = np.array([1e-3, -1.0, np.nan], np.float32)

# (field, case): the faulty call, and texts that its error must contain.
REFUSED = {
    ("num_envs", "zero"): (config(num_envs=0), ["num_envs = 0: must be at least 1"]),
    ("num_envs", "negative"): (config(num_envs=-4), ["num_envs = -4: must be at least 1"]),
    ("num_steps", "zero"): (config(num_steps=0), ["num_steps = 0: must be at least 1"]),
    ("num_envs", "float"): (config(num_envs=8.0), ["num_envs = 8.0", "not float"]),
    ("num_envs", "text"): (config(num_envs="8"), ["num_envs = '8'", "not str"]),
    ("num_envs", "bool"): (config(num_envs=True), ["num_envs = True", "not bool"]),
    ("num_minibatches", "indivisible"): (config(num_minibatches=7), ["num_minibatches = 7", "= 512", "4 or 8 would work"]),
    ("num_minibatches", "too many"): (config(num_minibatches=1024), ["num_minibatches = 1024", "256 would work"]),
    ("num_minibatches", "one step"): (config(num_minibatches=512), ["num_minibatches = 512", "advantage_norm='batch'"]),
    ("total_timesteps", "no step"): (config(total_timesteps=0), ["total_timesteps = 0: must be at least 1"]),
    ("total_timesteps", "fraction"): (config(total_timesteps=5.5e5 + 0.3), ["total_timesteps = 550000.3"]),
    ("total_timesteps", "rows"): (
        lambda: jax.eval_shape(config(total_timesteps=1e18)(), KEY),
        ["total_timesteps = 1e+18", "metrics_every = "],
    ),
    ("gamma", "above"): (config(gamma=1.1), ["gamma = 1.1: must be between 0 and 1"]),
    ("gamma", "below"): (config(gamma=-0.1), ["gamma = -0.1: must be between 0 and 1"]),
    ("gamma", "nan"): (config(gamma=math.nan), ["gamma = nan: must be between 0 and 1"]),
    ("gamma", "text"): (config(gamma="0.9"), ["gamma = '0.9': must be a number, not str"]),
    ("gae_lambda", "above"): (config(gae_lambda=1.1), ["gae_lambda = 1.1: must be between 0 and 1"]),
    ("gae_lambda", "nan"): (config(gae_lambda=math.nan), ["gae_lambda = nan"]),
    ("clip_eps", "zero"): (config(clip_eps=0.0), ["clip_eps = 0.0: must be above 0"]),
    ("lr", "negative"): (config(lr=-1e-3), ["lr = -0.001: must be finite and at least 0"]),
    ("lr", "nan"): (config(lr=math.nan), ["lr = nan"]),
    ("lr", "inf"): (config(lr=math.inf), ["lr = inf"]),
    ("ent_coef", "negative"): (config(ent_coef=-0.01), ["ent_coef = -0.01"]),
    ("ent_coef", "nan"): (config(ent_coef=math.nan), ["ent_coef = nan"]),
    ("vf_coef", "negative"): (config(vf_coef=-0.5), ["vf_coef = -0.5"]),
    ("max_grad_norm", "zero"): (config(max_grad_norm=0.0), ["max_grad_norm = 0.0: must be above 0 (inf to disable)"]),
    ("num_epochs", "zero"): (config(num_epochs=0), ["num_epochs = 0: must be between 1 and"]),
    ("unknown field", "replace"): (lambda: purerl.PPOConfig().replace(learning_rte=1), ["learning_rte = 1: no such field"]),
    ("unknown field", "json"): (lambda: purerl.PPOConfig.from_json('{"num_evns": 1}'), ["did you mean 'num_envs'"]),
    ("choice", "activation"): (config(activation="tahn"), ["activation = 'tahn': choose from 'tanh', 'relu'"]),
    ("choice", "schedule"): (config(lr_schedule="cosine"), ["choose from 'linear', 'constant'"]),
    ("choice", "estimator"): (config(estimator="vtrace"), ["choose from 'gae'"]),
    ("env", "unknown id"): (config(env="CartPol-v0"), ["env = 'CartPol-v0'", "did you mean 'CartPole-v1'"]),
    ("env", "object"): (
        lambda: purerl.make_train(purerl.PPOConfig(), env=object()),
        ["has no method reset or step or action_space"],
    ),
    ("step", "five"): (stepping(lambda o, s: (o, s, 0.0, False, {})), ["returns 5 values", "gymnax 0.0", "gymnax >= 1.0.1"]),
    ("step", "four"): (stepping(lambda o, s: (o, s, 0.0, False)), ["returns 4 values, but gymnax 1.0 needs 6"]),
    ("step", "seven"): (stepping(lambda o, s: (o, s, *FLAGS, {}, 0)), ["returns 7 values"]),
    ("reward", "shape"): (broken(reward_of=lambda *_: jnp.ones(1)), ["env: reward = 'float32[1]': must be a float32 scalar"]),
    ("reward", "complex"): (
        broken(reward_of=lambda *_: jnp.complex64(1)),
        ["env: reward = 'complex64[]': must be a float32 scalar"],
    ),
    ("flag", "float"): (broken(ends=lambda *_: jnp.float32(1)), ["env: terminated = 'float32[]': must be a bool scalar"]),
    ("flag", "int"): (broken(ends=lambda *_: jnp.int32(1)), ["env: terminated = 'int32[]': must be a bool scalar"]),
    ("flag", "shape"): (broken(is_truncated=lambda *_: jnp.ones(1, bool)), ["env: truncated = 'bool[1]': must be a bool scalar"]),
    ("observation", "another shape"): (
        lambda: purerl.make_train(purerl.PPOConfig(), env=Grows()),
        ["the observation after a step must be float32[1], as after a reset", "env = 'float32[2]'"],
    ),
    ("observation", "empty"): (broken(width=0), ["observations are empty"]),
    ("observation", "dict"): (broken(observe_state=lambda *_: {}), ["observations are empty"]),
    ("state", "leaf"): (lambda: purerl.make_train(purerl.PPOConfig(), env=Grows()), ["the state.kind after a step", "int32[]"]),
    ("state", "structure"): (
        lambda: purerl.make_train(purerl.PPOConfig(), env=Listed()),
        ["must have the structure of the state after a reset"],
    ),
    ("state", "object"): (lambda: purerl.make_train(purerl.PPOConfig(), env=Objects()), [".name", "'agent'", "is not an array"]),
    ("action space", "text"): (broken(action_space=lambda *_: "four"), ["the action space must be Discrete, Box, purerl's"]),
    ("action space", "no part"): (broken(action_space=lambda *_: spaces.Tuple([])), ["must have at least one part"]),
    ("action space", "empty part"): (broken(action_space=lambda *_: (spaces.Discrete(0),)), ["must have at least one action"]),
    ("action space", "no action"): (broken(action_space=lambda *_: spaces.Discrete(0)), ["at least one action"]),
    ("action space", "bounds"): (broken(action_space=lambda *_: spaces.Box(1.0, -1.0, (1,))), ["low < high"]),
    ("action space", "nan"): (broken(action_space=lambda *_: spaces.Box(-1.0, np.nan, (1,))), ["low < high"]),
    ("action space", "integers"): (broken(action_space=lambda *_: spaces.Box(0, 3, (1,), jnp.int32)), ["a Box of integers"]),
    ("final observation", "missing"): (stepping(lambda o, s: (o, s, *FLAGS, {})), ["no info['final_observation']"]),
    ("time limit", "unknown"): (evaluate_endless, ["max_steps = None: the environment has no known time limit"]),
    ("network", "logits"): (network(actions=3), ["network = 3: the policy must have 2 logits"]),
    ("network", "value shape"): (network(value=lambda v: v[..., None]), ["must have shape [1, 2], without an output axis"]),
    ("network", "groups"): (network(result=lambda params: params["policy"]), ["init must return a dict"]),
    ("hidden", "zero"): (config(hidden=(64, 0)), ["hidden = (64, 0)", "must be between 1 and"]),
    ("hidden", "negative"): (config(hidden=(-1,)), ["hidden = (-1,)"]),
    ("hidden", "int"): (config(hidden=64), ["hidden = 64: must be a tuple of ints"]),
    ("key", "int"): (key_of(0), ["key = 0: must be a key, such as jax.random.key(0)"]),
    ("key", "numpy"): (key_of(np.int64(-1)), ["must be a key"]),
    ("key", "float"): (key_of(0.5), ["must be a key"]),
    ("key", "none"): (key_of(None), ["must be a key", "None"]),
    ("key", "batch"): (key_of(np.zeros((3, 2), np.uint32)), ["jax.vmap"]),
    ("seed", "float"): (lambda: purerl.fit(purerl.PPOConfig(), seed=0.5), ["seed = 0.5: must be an int"]),
    ("num_seeds", "zero"): (lambda: purerl.fit(purerl.PPOConfig(), num_seeds=0), ["num_seeds = 0: must be an int of at least 1"]),
    ("seed", "too large"): (lambda: purerl.fit(purerl.PPOConfig(), 2**32 - 1, num_seeds=2), ["at most 1 would work"]),
    ("num_envs", "traced"): (
        lambda: jax.vmap(lambda n: config(num_envs=n)().cfg.lr)(np.array([4, 8])),
        ["num_envs = ", "static", "cannot be traced or swept"],
    ),
    ("lr", "array"): (config(lr=np.array([1e-3, 1e-4, 1e-5])), ["lr = ", "must be a single number", "jax.vmap"]),
    ("lr", "sweep"): (lambda: purerl.validate(purerl.PPOConfig(lr=RATES)), ["lr = ", "invalid: -1.0, nan"]),
    ("num_envs", "memory"): (config(env="Breakout-MinAtar", num_envs=10**7), ["num_envs = 10000000", "need 2,048 GB"]),
    ("num_envs", "count"): (config(num_envs=10**9), ["num_envs = 1000000000", "fewer than 2**31"]),
}

REFUSED |= {("object", name): (case, [part]) for name, (case, part) in wrong_objects.ALL.items()}

WARNED = {
    ("clip_eps", "wide"): (config(clip_eps=1.0), "clip_eps = 1.0"),
    ("observation", "uint8"): (broken(observe_state=lambda *_: jnp.ones(1, jnp.uint8)), "observations of uint8"),
    ("image", "channel first"): (
        broken(observe_state=lambda *_: jnp.ones((4, 84, 84), jnp.uint8)),
        "images whose channels come first",
    ),
}

ACCEPTED = {
    ("total_timesteps", "less than a batch"): config(total_timesteps=1),
    ("total_timesteps", "no multiple"): config(total_timesteps=1000),
    ("total_timesteps", "whole float"): config(total_timesteps=5e5),
    ("total_timesteps", "very long"): config(total_timesteps=1e18),
    ("gamma", "one"): config(gamma=1.0),
    ("clip_eps", "infinite"): config(clip_eps=math.inf),
    ("lr", "zero"): config(lr=0.0),
    ("max_grad_norm", "infinite"): config(max_grad_norm=math.inf),
    ("reward", "int"): broken(reward_of=lambda *_: jnp.int32(1)),
    ("reward", "bool"): broken(reward_of=lambda *_: jnp.array(True)),
    ("observation", "int"): broken(observe_state=lambda *_: jnp.ones(1, jnp.int32)),
    ("reward", "weakly typed"): broken(reward_of=lambda *_: 1.0),
    ("action space", "one action"): broken(action_space=lambda *_: spaces.Discrete(1)),
    ("time limit", "unknown, in training"): lambda: purerl.make_train(purerl.PPOConfig(), env=Endless()),
    ("hidden", "empty"): config(hidden=()),
}


def outcome(case):
    """Return the error of a call as text; an empty text if there is no error."""
    try:
        case()
    except (purerl.ConfigError, purerl.CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    print(json.dumps({f"{row} {name}": outcome(case) for (row, name), (case, _) in REFUSED.items()}))
