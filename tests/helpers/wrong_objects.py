"""Wrong values, objects, networks, environments and options, each with a part of its expected error.

Without checks, most of these objects would end in the traceback of another library.
"""

from collections.abc import Callable

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
from gymnax.environments import spaces

import purerl
from tests.helpers import probes
from tests.helpers.broken import Line
from tests.ideas import simulator

HUGE = 10**400
NO = jnp.array(False)
Categorical = purerl.distributions.Categorical


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x


def config(**fields):
    return lambda: purerl.make_train(purerl.PPOConfig(**fields))


def train(**objects):
    return lambda: purerl.make_train(purerl.PPOConfig(), **objects)


def advantages(change):
    """Return a call of `make_train` with an advantage estimator that applies `change` to the result of GAE."""
    return train(advantage=lambda steps, cfg: change(purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)))


def paid(reward):
    return train(intrinsic=(lambda key, obs: jnp.float32(0), reward))


def choosing(space, policy):
    """Return a call of `make_train` with an environment of this action space and a network with this policy."""
    spaced = type("Spaced", (probes.Constant,), {"action_space": lambda self, params=None: space})()
    init = lambda key, obs: {"policy": jnp.zeros(3), "value": jnp.zeros(3)}
    apply = lambda params, carry, obs, first: (outputs(first, policy(first.shape)), carry)
    return lambda: purerl.make_train(purerl.PPOConfig(), env=spaced, network=purerl.Network(init, apply))


def env(**methods):
    return train(env=type("Broken", (probes.Constant,), methods)())


def fit(**options):
    return lambda: purerl.fit(purerl.PPOConfig(total_timesteps=512), **options)


def params(value):
    return config(env="Pendulum-v1", env_params={"g": value})


def outputs(first, policy=None, value=None):
    made = Categorical(jnp.zeros((*first.shape, 2))) if policy is None else policy
    return purerl.Outputs(made, jnp.zeros(first.shape) if value is None else value)


def network(apply=lambda params, carry, obs, first: (outputs(first), carry), init=None, initial_carry=lambda n: ()):
    init = init or (lambda key, obs: {"policy": jnp.zeros(3), "value": jnp.zeros(3)})
    return train(network=purerl.Network(init, apply, initial_carry))


VALUES = {
    "int too large for a float": (config(lr=HUGE), "lr"),
    "text array": (config(lr=np.array("a")), "lr"),
    "key for a number": (config(lr=jax.random.key(0)), "lr"),
    "complex": (config(lr=1j), "lr"),
    "NumPy complex": (config(lr=np.complex64(1j)), "lr"),
    "list for a number": (config(lr=[1e-3]), "lr"),
    "None for a number": (config(lr=None), "lr"),
    "object": (config(lr=object()), "lr"),
    "function": (config(lr=lambda step: 1e-3), "lr"),
    "bool for a number": (config(lr=True), "lr"),
    "array for a number": (config(lr=np.ones(2)), "lr"),
    "minus infinity": (config(lr=-np.inf), "lr"),
    "auto where there is none": (config(lr="auto"), "lr"),
    "wrong word": (config(normalize_obs="yes"), "normalize_obs"),
    "NaN beside auto": (config(ent_coef=np.nan), "ent_coef"),
    "unhashable": (config(memory="gru", memory_inputs=(["action"],)), "memory_inputs"),
    "huge learning_starts": (config(learning_starts=10**25), "learning_starts"),
    "huge warmup_steps": (config(warmup_steps=10**25), "warmup_steps"),
    "huge total_timesteps": (config(total_timesteps=10**30), "total_timesteps"),
    "NaN total_timesteps": (config(total_timesteps=np.nan), "total_timesteps"),
    "infinite total_timesteps": (config(total_timesteps=np.inf), "total_timesteps"),
    "list hidden": (config(hidden=[64, 64]), "hidden"),
    "number hidden": (config(hidden=64), "hidden"),
    "float hidden": (config(hidden=(64.0,)), "hidden"),
    "None env": (config(env=None), "env"),
    "number for an id": (config(env=5), "env"),
    "dict env_kwargs": (config(env="DeepSea-bsuite", env_kwargs={"size": 5}), "env_kwargs"),
    "size 0": (config(env="DeepSea-bsuite", env_kwargs=(("size", 0),)), "ZeroDivisionError"),
    "size -1": (config(env="DeepSea-bsuite", env_kwargs=(("size", -1),)), "env"),
    "text size": (config(env="DeepSea-bsuite", env_kwargs=(("size", "a"),)), "env_kwargs"),
    "NaN parameter": (params(np.nan), "env_params"),
    "infinite parameter": (params(np.inf), "env_params"),
    "None parameter": (params(None), "env_params"),
    "list parameter": (params([1.0, 2.0]), "env_params"),
    "dict parameter": (params({"a": 1}), "env_params"),
    "text parameter": (params("x"), "env_params"),
    "bool parameter": (params(True), "env_params"),
    "complex parameter": (params(1j), "env_params"),
    "huge parameter": (params(HUGE), "env_params"),
    "number for a parameter's name": (config(env="Pendulum-v1", env_params={3: 1.0}), "env_params"),
    "list env_params": (config(env_params=[1]), "env_params"),
    "None env_params": (config(env_params=None), "env_params"),
    "text info": (config(info="a"), "info"),
    "None episode_info": (config(episode_info=None), "episode_info"),
    "number in info": (config(info=(5,)), "info"),
    "function activation": (config(activation=jnp.tanh), "activation"),
    "None torso": (config(torso=None), "torso"),
    "text count": (config(num_envs="4"), "num_envs"),
    "JAX count": (config(num_envs=jnp.int32(4)), "num_envs"),
    "number rnd": (config(rnd=5), "rnd"),
    "bool rnd": (config(rnd=True), "rnd"),
    "class rnd": (config(rnd=purerl.RNDConfig), "rnd"),
    "wrong inside rnd": (config(rnd=purerl.RNDConfig(features="x")), "rnd.features"),
    "no JSON": (lambda: purerl.PPOConfig.from_json("{"), "not valid JSON"),
    "list JSON": (lambda: purerl.PPOConfig.from_json("[]"), "PPOConfig"),
    "wrong value in JSON": (lambda: purerl.make_train(purerl.PPOConfig.from_json('{"lr": "x"}')), "lr"),
    "wrong part in JSON": (lambda: purerl.PPOConfig.from_json('{"rnd": 5}'), "RNDConfig"),
}
OBJECTS = {
    "None config": (lambda: purerl.make_train(None), "cfg"),
    "class for a config": (lambda: purerl.make_train(purerl.PPOConfig), "cfg"),
    "part for a config": (lambda: purerl.make_train(purerl.RNDConfig()), "cfg"),
    "dict for a config": (lambda: purerl.make_train({"LR": 1}), "purerl.PPOConfig(lr=1e-3)"),
    "text for a config": (lambda: purerl.make_train("CartPole-v1"), "cfg"),
    "fit of a dict": (lambda: purerl.fit({"lr": 1}), "cfg"),
    "fit of None": (lambda: purerl.fit(None), "cfg"),
    "fit of a class": (lambda: purerl.fit(purerl.PPOConfig), "cfg"),
    "validate a number": (lambda: purerl.validate(5), "cfg"),
    "validate a dict": (lambda: purerl.validate({}), "cfg"),
    "number network": (train(network=5), "network"),
    "linen network": (train(network=Plain()), "network"),
    "number intrinsic": (train(intrinsic=5), "intrinsic"),
    "one intrinsic function": (train(intrinsic=(lambda key, obs: 0,)), "intrinsic"),
    "intrinsic texts": (train(intrinsic=("a", "b")), "intrinsic"),
    "number optimizer": (train(optimizer=5), "optimizer"),
    "text optimizer": (train(optimizer="adam"), "optimizer"),
    "number schedule": (train(lr_schedule=5), "lr_schedule"),
    "schedule of two arguments": (train(lr_schedule=lambda step, total: 1e-3), "lr_schedule"),
    "schedule of pairs": (train(lr_schedule=lambda step: jnp.zeros(2)), "lr_schedule"),
    "number reward_shaper": (train(reward_shaper=5), "reward_shaper"),
    "reward_shaper that sums": (train(reward_shaper=lambda reward, step: reward.sum()), "reward_shaper"),
    "number advantage": (train(advantage=5), "advantage"),
    "advantage with an axis": (advantages(lambda x: x.replace(advantage=x.advantage[..., None])), "advantage = [128, 4, 1]"),
    "target with an axis": (advantages(lambda x: x.replace(target=x.target[..., None])), "advantage = [128, 4, 1]"),
    "advantage of each step": (advantages(lambda x: x.replace(advantage=x.advantage.mean(1))), "advantage = [128]"),
    "advantage turned around": (advantages(lambda x: x.replace(advantage=x.advantage.T)), "advantage = [4, 128]"),
    "intrinsic reward with an axis": (paid(lambda state, steps: (steps.reward[..., None], state)), "intrinsic = [128, 4, 1]"),
    "intrinsic reward of each environment": (paid(lambda state, steps: (steps.reward[0], state)), "intrinsic = [4]"),
    "intrinsic reward alone": (paid(lambda state, steps: steps.reward), "must return a pair"),
    "intrinsic state of another shape": (
        paid(lambda state, steps: (steps.reward, jnp.zeros(3))),
        "must return a state like its input",
    ),
    "choices of other sizes": (
        choosing(
            purerl.MultiDiscrete((2, 2)), lambda shape: purerl.distributions.MultiCategorical(jnp.zeros((*shape, 9)), (5, 4))
        ),
        "network = (5, 4)",
    ),
    "choices for switches": (
        choosing(purerl.MultiBinary(2), lambda shape: purerl.distributions.MultiCategorical(jnp.zeros((*shape, 9)), (5, 4))),
        "network = (5, 4)",
    ),
    "switches for choices": (
        choosing(purerl.MultiDiscrete((3, 3)), lambda shape: purerl.distributions.Bernoulli(jnp.zeros((*shape, 2)))),
        "network = (2, 2)",
    ),
    "switches for one choice": (
        choosing(purerl.Discrete(2), lambda shape: purerl.distributions.Bernoulli(jnp.zeros((*shape, 2)))),
        "actions must have shape [1, 2]",
    ),
    "switches for a Box": (
        choosing(spaces.Box(-1.0, 1.0, (3,)), lambda shape: purerl.distributions.Bernoulli(jnp.zeros((*shape, 3)))),
        "must have dtype float32",
    ),
    "number policy_loss": (train(policy_loss=5), "policy_loss"),
    "policy_loss that means": (train(policy_loss=lambda new, old, advantage, cfg: advantage.mean()), "policy_loss"),
    "policy_loss of before": (
        train(policy_loss=lambda log_prob, old_log_prob, advantage, cfg: -log_prob * advantage),
        "(outputs, old, advantage, cfg) raised TypeError",
    ),
    "policy_loss without a config": (train(policy_loss=lambda new, old, advantage: new), "policy_loss"),
    "text env": (train(env="CartPole-v1"), "PPOConfig(env='CartPole-v1')"),
    "env with its parameters": (train(env=gymnax.make("CartPole-v1")), "env_params=params"),
    "class env": (train(env=probes.Constant), "write Constant()"),
    "number env": (train(env=5), "has no method"),
    "number env_params": (train(env=probes.Constant(), env_params=5), "env"),
    "number key": (lambda: train()()(5), "key"),
    "many keys": (lambda: train()()(jax.random.split(jax.random.key(0), 3)), "jax.vmap over the keys"),
}
NETWORKS = {
    "logits for a policy": (network(lambda p, c, o, f: (outputs(f, jnp.zeros((*f.shape, 2))), c)), "must be a distribution"),
    "no carry": (network(lambda p, c, o, f: outputs(f)), "must return a pair"),
    "pair for outputs": (network(lambda p, c, o, f: ((f, f), c)), "purerl.Outputs"),
    "nothing": (network(lambda p, c, o, f: None), "must return a pair"),
    "two arguments": (network(lambda p, o: None), "apply(params, carry, obs [1, 2, 4], first [1, 2])"),
    "no value": (network(lambda p, c, o, f: (outputs(f)._replace(value=None), c)), "the value must be an array"),
    "init of one argument": (network(init=lambda key: {}), "init(key, obs"),
    "shapes that do not fit": (
        network(lambda p, c, o, f: (outputs(f, Categorical(o @ jnp.zeros((7, 2)))), c)),
        "raised TypeError",
    ),
    "number initial_carry": (network(initial_carry=5), "initial_carry(2)"),
}
ENVIRONMENTS = {
    "no reward": (env(step_env=lambda s, k, st, a, p: (jnp.zeros(1), st, None, NO, {})), "a real scalar, not None"),
    "reset of one": (env(reset_env=lambda s, k, p: jnp.zeros(1)), "reset_env"),
    "reset of three": (env(reset_env=lambda s, k, p: (jnp.zeros(1), 0, 0)), "returns 3 values"),
    "reset without params": (env(reset_env=lambda s, k: (jnp.zeros(1), 0)), "reset_env(key, params)"),
    "error in reset": (env(reset_env=lambda s, k, p: 1 / 0), "raised ZeroDivisionError"),
    "error in step": (env(step_env=lambda s, k, st, a, p: 1 / 0), "raised ZeroDivisionError"),
    "error in action_space": (env(action_space=lambda s, p=None: 1 / 0), "action_space(params)"),
    "empty Box": (env(action_space=lambda s, p=None: spaces.Box(-1, 1, (0,))), "at least one dimension"),
    "number MultiDiscrete": (env(action_space=lambda s, p=None: purerl.MultiDiscrete(5)), "a tuple of ints"),
    "text MultiDiscrete": (env(action_space=lambda s, p=None: purerl.MultiDiscrete(("a",))), "a tuple of ints"),
    "text MultiBinary": (env(action_space=lambda s, p=None: purerl.MultiBinary("a")), "a tuple of ints"),
    "no MultiBinary": (env(action_space=lambda s, p=None: purerl.MultiBinary(0)), "at least one action"),
    "no space": (env(action_space=lambda s, p=None: None), "action space must be"),
    "no observation": (env(reset_env=lambda s, k, p: (None, 0)), "env"),
    "no choice": (env(action_space=lambda s, p=None: spaces.Discrete(0)), "at least one action"),
}


class Undecorated(purerl.PPOConfig):
    pass


class NoMemory(nn.Module):
    @nn.compact
    def __call__(self, carry, x, first):
        return x

    def initial_carry(self, num_envs):
        return jnp.zeros((num_envs, 2))


class OtherCarry(NoMemory):
    @nn.compact
    def __call__(self, carry, x, first):
        return x, carry[None]


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)


def plain_field():
    purerl.configclass(type("Mine", (purerl.PPOConfig,), {"__annotations__": {"beta": float}, "beta": 0.5}))


def own_class(**fields):
    """Return a config class with more fields, each given as a value or as a type and a value."""
    typed = {name: x for name, x in fields.items() if isinstance(x, tuple)}
    plain = {name: x[1] if name in typed else x for name, x in fields.items()}
    notes = {name: kind for name, (kind, _) in typed.items()}
    return purerl.configclass(type("Mine", (purerl.PPOConfig,), plain | {"__annotations__": notes}))


class Returning(nn.Module):
    outputs: Callable

    @nn.compact
    def __call__(self, x):
        return self.outputs(nn.Dense(4)(x))


def returning(outputs, env="CartPole-v1"):
    """Return a call of `make_train` with a linen module that applies `outputs` to features `[time, environments, 4]`."""
    return lambda: purerl.make_train(purerl.PPOConfig(env=env), network=purerl.from_linen(Returning(outputs)))


def own_env(**changes):
    """Return a `purerl.Environment` with changed parts and changed fields of its `TimeStep`."""
    parts = {name: changes.pop(name) for name in list(changes) if name in purerl.Environment._fields}
    step = lambda *args: simulator.step(*args).replace(**changes)
    return simulator.simulator._replace(**{"step": step} | parts)


def bare(**members):
    return lambda: purerl.wrap_env(type("Bare", (Line,), members)())


Y = jnp.zeros((2, 3))
DOORS = {
    "number torso": (train(torso=5), "torso"),
    "text torso": (train(torso="mlp"), "torso"),
    "torso of one function": (train(torso=(lambda key, x: 0,)), "torso"),
    "torso class with arguments": (train(torso=nn.Dense), "Dense()"),
    "torso that flattens all": (
        train(torso=(lambda key, x: jnp.zeros(3), lambda params, x: x.reshape(-1))),
        "must return float features",
    ),
    "torso of integers": (train(torso=(lambda key, x: jnp.zeros(3), lambda params, x: x.astype(jnp.int32))), "float features"),
    "torso that raises": (train(torso=(lambda key, x: 1 / 0, lambda params, x: x)), "raised ZeroDivisionError"),
    "torso of nnx": (train(torso=Dropping(nnx.Rngs(0))), "torso"),
    "torso beside a network": (train(torso=Plain(), network=purerl.Network(len, len)), "cannot be combined with network="),
    "encoder of no entry": (train(torso={"image": Plain()}), "no such entry"),
    "number memory": (train(memory=5), "memory"),
    "memory without a carry": (train(memory=Plain()), "initial_carry"),
    "memory of one value": (train(memory=NoMemory()), "must return a pair"),
    "memory of another carry": (train(memory=OtherCarry()), "a carry with the shapes and dtypes of its input"),
    "number algorithm": (train(algorithm=5), "algorithm"),
    "algorithm of nothing": (train(algorithm=lambda cfg, env, network, parts: None), "purerl.Algorithm"),
    "algorithm of one argument": (train(algorithm=lambda cfg: None), "raised TypeError"),
    "number extra_loss": (train(extra_loss=5), "extra_loss"),
    "extra_loss alone": (train(extra_loss=lambda params, outputs, batch, cfg: 0.0), "must return a pair"),
    "extra_loss of steps": (train(extra_loss=lambda params, outputs, batch, cfg: (Y, {})), "must be a scalar"),
    "extra_loss with a vector": (train(extra_loss=lambda params, outputs, batch, cfg: (0.0, {"a": Y})), "must be a scalar"),
    "extra_loss with None": (train(extra_loss=lambda params, outputs, batch, cfg: (0.0, {"a": None})), "must be a scalar"),
    "policy_loss of the mean": (
        fit(policy_loss=lambda outputs, old, advantage, cfg: outputs.value.mean()),
        "must return losses of shape",
    ),
    "advantage of an array": (train(advantage=lambda steps, cfg: steps.reward), "purerl.Advantages(advantage, target)"),
    "measure of text": (train(measure=lambda state: {"a": "b"}), "must be a scalar"),
    "measure of a column": (train(measure=lambda state: {"update": 9.0}), "already the name of a metric"),
    "measure of an evaluation": (train(measure=lambda state: {"evaluation/x": 9.0}), "already the name of a metric"),
    "torso with statistics": (train(torso=nn.BatchNorm(use_running_average=False)), "only parameters"),
    "field without a type": (lambda: own_class(beta=purerl.leaf(0.5)), "has no type; write beta: float"),
    "list field": (lambda: own_class(beta=(list, purerl.static([1]))), "configclass"),
    "class of no config": (lambda: purerl.configclass(int), "must extend a config class"),
    "undecorated for validate": (lambda: purerl.validate(Undecorated()), "@purerl.configclass"),
    "bare Environment": (lambda: purerl.wrap_env(simulator.simulator), "does not need wrap_env"),
    "bare space with a wrong entry": (bare(observation_space={"x": purerl.Discrete(3)}), "does not match the observation"),
    "bare index of a vector": (bare(observation_space=purerl.Discrete(3)), "must be an integer scalar"),
    "one environment to compare": (lambda: purerl.check_env("CartPole-v1", num_envs=1), "at least 2"),
    "extra_loss that raises": (train(extra_loss=lambda params, outputs, batch, cfg: 1 / 0), "raised ZeroDivisionError"),
    "plain field": (plain_field, "Mine.beta = 0.5: must be purerl.leaf(default)"),
    "undecorated class": (lambda: purerl.make_train(Undecorated()), "@purerl.configclass"),
    "number config_class": (lambda: purerl.load("nowhere", config_class=5), "no checkpoint"),
    "Environment of another reward": (train(env=own_env(reward=jnp.zeros(2, jnp.int32))), "must be float32"),
    "Environment of a flag of floats": (train(env=own_env(terminated=jnp.zeros(2))), "must be bool"),
    "Environment without TimeStep": (train(env=own_env(step=lambda *args: 0)), "purerl.TimeStep"),
    "Environment of another space": (
        train(env=own_env(observation_space=jax.ShapeDtypeStruct((3,), jnp.float32))),
        "does not match the observations",
    ),
    "Environment without actions": (train(env=own_env(action_space=5)), "env.action_space"),
    "Environment with parameters": (train(env=own_env(), env_params=5), "has no parameters"),
    "no such info": (lambda: purerl.make_train(purerl.PPOConfig(info=("x",)), env=own_env()), "has no such entry"),
    "no such episode_info": (
        lambda: purerl.make_train(purerl.PPOConfig(episode_info=("x",)), env=own_env()),
        "has no such entry",
    ),
    "vector for info": (lambda: purerl.make_train(purerl.PPOConfig(info=("reached",)), env=own_env()), "must be a number"),
    "bare number": (lambda: purerl.wrap_env(5), "has no method reset or step"),
    "bare class": (lambda: purerl.wrap_env(Line), "write Line()"),
    "bare limit": (lambda: purerl.wrap_env(Line(), max_steps=0), "max_steps"),
    "bare reset of three": (bare(reset=lambda self, key: (0, 0, 0)), "returns 3 values"),
    "bare step of five": (bare(step=lambda self, key, state, action: (0, 0, 0, 0, 0)), "returns 5 values"),
    "bare step that raises": (bare(step=lambda self, key, state, action: 1 / 0), "raised ZeroDivisionError"),
    "bare space": (bare(action_space=5), "action space must be"),
    "number from_linen": (lambda: purerl.from_linen(5), "from_linen needs"),
    "linen of one value": (train(network=purerl.from_linen(Plain)), "must return (policy, value)"),
    "linen of three arrays": (returning(lambda x: (x, x[..., 0], x[..., 0])), "where policy is logits or (mean, log_std)"),
    "linen of a list": (returning(lambda x: [x, x[..., 0]]), "network = list: the module must return (policy, value)"),
    "linen of lists": (returning(lambda x: ([x, x], x[..., 0])), "network = ('list', [1, 2]): the module must return"),
    "linen without a value": (returning(lambda x: (x, None)), "network = ([1, 2, 4], 'NoneType'): the module must return"),
    "linen of a mean alone": (returning(lambda x: (x, x[..., 0]), "Pendulum-v1"), "(mean, log_std) from a module"),
    "object from_nnx": (lambda: purerl.from_nnx(Dropping(nnx.Rngs(0))), "function of nnx.Rngs"),
    "nnx with dropout": (lambda: purerl.from_nnx(Dropping), "only nnx.Param variables"),
}
OPTIONS = {
    "no recorders": (fit(recorders=None), "recorders"),
    "number recorders": (fit(recorders=5), "recorders"),
    "recorder without a tuple": (fit(recorders=lambda progress: None), "(recorder,)"),
    "number in recorders": (fit(recorders=(5,)), "recorders"),
    "number init_from": (fit(init_from=5), "init_from"),
    "nothing at init_from": (fit(init_from="nowhere"), "no checkpoint in"),
    "number measure": (train(measure=5), "measure"),
    "measure of nothing": (train(measure=lambda state: None), "measure"),
    "measure of a vector": (train(measure=lambda state: {"a": jnp.zeros(3)}), "must be a scalar"),
    "measure under a taken name": (train(measure=lambda state: {"loss": jnp.zeros(())}), "choose another name"),
    "error in measure": (train(measure=lambda state: 1 / 0), "raised ZeroDivisionError"),
    "misspelt argument": (fit(netwrok=5), "did you mean 'network'?"),
    "another system's argument": (fit(callback=5), "fit(recorders=)"),
    "field for an argument": (fit(total_timesteps=10), "cfg.replace(total_timesteps=...)"),
    "number directory": (fit(directory=5), "directory"),
    "text seed": (fit(seed="a"), "seed"),
    "no seeds": (fit(num_seeds=0), "num_seeds"),
    "negative eval_every": (fit(eval_every=-1), "eval_every"),
    "no eval_episodes": (fit(eval_every=1, eval_episodes=0), "eval_episodes"),
    "unknown eval_env_params": (fit(eval_every=1, eval_env_params={"zz": 1}), "env_params"),
    "number eval_env_params": (fit(eval_every=1, eval_env_params=5), "eval_env_params"),
    "text eval_max_steps": (fit(eval_every=1, eval_max_steps="x"), "eval_max_steps"),
    "keep nothing": (fit(keep=0), "keep"),
    "load a number": (lambda: purerl.load(5), "directory"),
    "load None": (lambda: purerl.load(None), "directory"),
    "load nothing": (lambda: purerl.load("nowhere"), "no checkpoint in"),
    "plot a number": (lambda: purerl.plot(5, "a.png"), "directories"),
    "plot a text": (lambda: purerl.plot("runs/a", "a.png"), "directories"),
    "plot nothing": (lambda: purerl.plot([], "a.png"), "directories"),
    "number preset": (lambda: purerl.preset(5), "preset"),
    "unknown preset": (lambda: purerl.preset("Breakuot-MinAtar"), "Breakout-MinAtar"),
}
ALL = VALUES | OBJECTS | NETWORKS | ENVIRONMENTS | DOORS | OPTIONS
assert len(ALL) == sum(map(len, (VALUES, OBJECTS, NETWORKS, ENVIRONMENTS, DOORS, OPTIONS))), "two cases have the same name"
