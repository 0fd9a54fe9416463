"""Numbers and texts in the objects that a user passed."""

import functools
import threading

import equinox
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import purerl
from purerl.runs.storage.object_values import object_values
from purerl.runs.storage.objects import describe_objects, object_differences
from tests.helpers.tiny import CFG

SCALE = 3.0


class Reach:
    """Stand still; the reward is the goal."""

    action_space = purerl.Discrete(2)
    max_steps = 5

    def __init__(self, goal, grid=4):
        self._goal, self.grid = goal, np.arange(float(grid))

    @functools.cached_property
    def cached(self):
        return 3

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action):
        return state, state, jnp.float32(self._goal), False, False, {}


class Layer(nn.Module):
    size: int = 8


class Net(equinox.Module):
    width: int
    weight: jax.Array


def scaled(reward, _, by=1.0):
    return reward * SCALE * by


def twice(make):
    return lambda: make()


CASES = {
    "attributes": (lambda x: Reach(x), "_goal"),
    "arrays": (lambda x: Reach(2, grid=x), "grid"),
    "environments": (lambda x: purerl.wrap_env(Reach(x)), "_goal"),
    "transformed": (lambda x: purerl.wrap_env(Reach(x))._replace(name="reach"), "_goal"),
    "keywords": (lambda x: functools.partial(scaled, by=x), "arguments"),
    "no keywords": (lambda x: functools.partial(scaled, by=x) if x > 2 else scaled, "arguments"),
    "classes": (lambda x: functools.partial(Reach, x) if x > 2 else Reach, "arguments"),
    "closures": (lambda x: lambda reward, _: reward * x, "x"),
    "defaults": (lambda x: lambda reward, _, by=x: reward * by, "defaults"),
    "jitted": (lambda x: jax.jit(lambda reward, _: reward * x), "x"),
    "decorated": (lambda x: twice(lambda: x), "make.x"),
    "methods": (lambda x: Reach(x).reset, "self._goal"),
    "linen modules": (lambda x: Layer(x), "size"),
    "equinox modules": (lambda x: Net(x, jnp.zeros(2)), "width"),
    "optax": (lambda x: optax.scale_by_adam(b1=x / 10), "update.b1"),
    "chains": (lambda x: optax.chain(optax.clip(1.0), optax.trace(x / 10)), "update.update_fns.1.tx.update.decay"),
}


@pytest.mark.parametrize("name", CASES)
def test_objects_with_other_numbers_have_other_values(name):
    make, path = CASES[name]
    first, again, other = (object_values(make(x), arrays=True) for x in (2, 2, 9))
    assert first == again
    assert {at for at in first.keys() & other.keys() if first[at] != other[at]} == {path}


def test_globals_of_functions_are_values(monkeypatch):
    assert object_values(scaled)["SCALE"] == "3"
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert object_values(scaled)["SCALE"] == "4"


def test_caches_names_and_parameters_are_no_values():
    env = Reach(2)
    before = object_values(env)
    assert env.cached == 3
    assert object_values(env) == before
    assert object_values(Layer(name="a")) == object_values(Layer(name="b"))
    assert object_values(Net(2, jnp.zeros(2))) == object_values(Net(2, jnp.ones(2)))


def test_values_of_other_kinds_are_left_out():
    env = Reach(2)
    env.key, env.bits, env.names, env.lock = jax.random.key(0), jnp.ones(3, jnp.bfloat16), {"a"}, threading.Lock()
    env.options = {"sizes": (1, (2, "x")), "found": {"deep": np.float32(3)}}
    found = object_values(env, arrays=True)
    assert found.keys() == {"_goal", "grid", "options"}
    assert found["options"] == "found=deep=3, sizes=(1, (2, 'x'))"


def test_cycles_end():
    env = Reach(2)
    env.itself, env.parts = env, [env]
    assert object_values(env)["_goal"] == "2"


def test_values_of_objects_are_part_of_a_run():
    described = lambda **given: describe_objects((train := purerl.make_train(CFG, **given)).given, train.env)
    then, now = (described(env=purerl.wrap_env(Reach(x)), optimizer=optax.scale_by_adam(b1=x / 10)) for x in (2, 9))
    env, optimizer = object_differences(then, now)
    assert env == "env: env._goal 2 in the checkpoint, env._goal 9 here; pass the same object as `env=`"
    assert optimizer.startswith("optimizer: optimizer.update.b1 0.2 in the checkpoint, optimizer.update.b1 0.9 here")
    old = {name: {what: text for what, text in x.items() if "." not in what} for name, x in then.items()}
    assert not object_differences(old, now)  # a record of before, without values


def test_arguments_of_gymnasium_are_part_of_a_run():
    def described(**kwargs):
        train = purerl.make_train(CFG, env=purerl.from_gymnasium(lambda: gymnasium.make("MountainCar-v0", **kwargs)))
        return describe_objects(train.given, train.env)

    then, now, drawn = described(goal_velocity=0.0), described(goal_velocity=0.01), described(goal_velocity=0.0, render_mode=None)
    assert any(
        "env.goal_velocity 0 in the checkpoint, env.goal_velocity 0.01 here" in text for text in object_differences(then, now)
    )
    assert then["env"]["env.goal_velocity"] == drawn["env"]["env.goal_velocity"]
