"""Values in the objects that a user passed."""

import functools
import logging
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
from purerl.runs.storage.object_values import CODE_NAME, numbers_of, object_values, other_numbers
from tests.helpers.tiny import CFG

SCALE = 3.0
MODES = {"easy": 1.0, "hard": 2.0}
WALLS = np.zeros((3, 3), bool)


class Reach:
    """Stand still; the reward is the goal."""

    action_space = purerl.Discrete(2)
    max_steps = 5

    def __init__(self, goal, **attributes):
        self._goal = goal
        vars(self).update(attributes)

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


class Attributes(dict):
    """A dict whose entries are attributes, too, as in many config libraries."""

    __getattr__ = dict.__getitem__


def scaled(reward, _, by=1.0):
    return reward * SCALE * by


def twice(make):
    return lambda: make()


def values_in(found):
    """Return the entries that are not hashes of code."""
    return {path: x for path, x in found.items() if CODE_NAME not in path}


CASES = {
    "attributes": (lambda x: Reach(x), "_goal"),
    "inner objects": (lambda x: Reach(2, inner=Reach(x)), "inner._goal"),
    "environments": (lambda x: purerl.wrap_env(Reach(x)), "_goal"),
    "transformed": (lambda x: purerl.wrap_env(Reach(x))._replace(name="reach"), "_goal"),
    "keywords": (lambda x: functools.partial(scaled, by=x), "by"),
    "arguments": (lambda x: functools.partial(Reach, x), "0"),
    "closures": (lambda x: lambda reward, _: reward * x, "x"),
    "arrays of one number": (lambda x: (lambda by: lambda reward, _: reward * by)(jnp.float32(x)), "by"),
    "dicts": (lambda x: (lambda cfg: lambda reward, _: cfg.f(reward) * cfg.by)(Attributes(f=jnp.tanh, by=x)), "cfg.by"),
    "tuples": (lambda x: Reach(2, sizes=(1, x)), "sizes"),
    "words": (lambda x: Reach(2, mode="easy" if x == 2 else "hard"), "mode"),
    "tuples of words": (lambda x: Reach(2, rewards=("dense", "goal" if x == 2 else "key")), "rewards"),
    "words in closures": (lambda x: (lambda mode: lambda reward, _: reward * MODES[mode])("easy" if x == 2 else "hard"), "mode"),
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
def test_objects_with_other_numbers_differ(name):
    make, path = CASES[name]
    first, again, other = (object_values(make(x)) for x in (2, 2, 9))
    assert first == again
    assert {at for at in first.keys() & other.keys() if first[at] != other[at]} == {path}


def test_globals_that_a_function_reads_are_found_and_attributes_of_that_name_are_not(monkeypatch):
    reads = lambda cfg: cfg.SCALE
    assert object_values(scaled)["SCALE"] == "3"
    assert "SCALE" not in object_values(reads)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert object_values(scaled)["SCALE"] == "4"


def defined(text):
    """Return the function or the instance of a class that a source text defines."""
    names = {"Reach": Reach, "__name__": __name__}
    exec(compile(text, "user.py", "exec"), names)
    made = list(names.values())[-1]
    return made() if isinstance(made, type) else made


SOURCES = {
    "a constant": ("def f(reward, _): return reward * 2.0", "def f(reward, _): return reward * 3.0"),
    "an operation": ("def f(reward, _): return reward + 1", "def f(reward, _): return reward - 1"),
    "a function": ("import math\ndef f(x): return math.sin(x)", "import math\ndef f(x): return math.cos(x)"),
    "an inner function": ("def f(x): return (lambda y: y + 1)(x)", "def f(x): return (lambda y: y + 2)(x)"),
    "a method": (
        "class Far(Reach):\n def __init__(self): super().__init__(1)\n def step(self, key, state, action): return 1.0",
        "class Far(Reach):\n def __init__(self): super().__init__(1)\n def step(self, key, state, action): return 2.0",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_objects_with_other_code_differ(name):
    """Docstrings and line numbers do not count."""
    one, other = SOURCES[name]
    first, again, changed = (object_values(defined(text)) for text in (one, "\n\n" + one, other))
    assert first == again
    (path,) = {at for at in first.keys() & changed.keys() if first[at] != changed[at]}
    assert path == ("step." if name == "a method" else "") + CODE_NAME
    documented = object_values(defined('def f(x):\n  """Return x."""\n  return x + 1'))
    assert documented == object_values(defined('def f(x):\n  """Return the same."""\n  return x + 1'))


def test_code_of_installed_packages_is_left_out():
    assert not any(CODE_NAME in path for path in object_values({"optimizer": optax.adam(1e-3), "layer": nn.Dense(3)}))


MAPS = {
    "walls": (lambda x: Reach(2, walls=np.arange(9).reshape(3, 3) == x), "walls"),
    "walls on the device": (lambda x: Reach(2, walls=jnp.arange(9) == x), "walls"),
    "goals": (lambda x: Reach(2, goals=np.array([0.5, x, np.inf])), "goals"),
    "goals in a dict": (lambda x: Reach(2, options={"goals": jnp.array([1e-9, x * 1e-9])}), "options.goals"),
    "closures": (lambda x: (lambda walls: lambda reward, _: reward * walls[0])(np.array([x, 1])), "walls"),
}


@pytest.mark.parametrize("name", MAPS)
def test_environments_with_other_arrays_differ(name):
    make, path = MAPS[name]
    first, again, other = (object_values(make(x), arrays=True) for x in (2, 2, 5))
    assert first == again
    assert {at for at in first.keys() & other.keys() if first[at] != other[at]} == {path}


def test_arrays_that_a_function_reads_are_found_and_last_bits_do_not_count(monkeypatch):
    reads = lambda state: WALLS[state]
    before = object_values(reads, arrays=True)["WALLS"]
    monkeypatch.setitem(globals(), "WALLS", ~WALLS)
    assert object_values(reads, arrays=True)["WALLS"] != before
    goals = np.float32([0.1, 0.7])
    found = [object_values(Reach(2, goals=goals * np.float32(by)), arrays=True)["goals"] for by in (1.0, 1 + 2e-7, 1.01)]
    assert found[0] == found[1] != found[2]


def test_arrays_of_networks_are_left_out():
    train = purerl.make_train(
        CFG, env=purerl.wrap_env(Reach(2, walls=WALLS)), reward_shaper=lambda reward, _: reward + WALLS[0, 0]
    )
    assert values_in(numbers_of(train.given, train.env)).keys() == {"env._goal", "env.walls"}


def test_what_differs_between_equal_objects_is_left_out():
    """Caches, names, addresses, loggers, locks, names of runs and parameters."""
    env = Reach(
        2, key=jax.random.key(0), bits=jnp.ones(3, jnp.bfloat16), names={"a"}, lock=threading.Lock(), run="a1", long=[1.0] * 999
    )
    env.logger, env.event, env.table = logging.getLogger("reach"), threading.Event(), {jnp.tanh: 2.0}
    assert env.cached == 3
    env.itself, env.parts, env.options = env, [env], {"deep": np.float32(3)}
    env.options["self"] = env.options
    assert values_in(object_values(env)) == {"_goal": "2", "options.deep": "3"}
    assert object_values(Layer(name="a")) == object_values(Layer(name="b"))
    assert object_values(Net(2, jnp.zeros(2))) == object_values(Net(2, jnp.ones(2)))


def test_other_numbers_are_named():
    def numbers(x):
        given = {"env": purerl.wrap_env(Reach(x)), "optimizer": optax.scale_by_adam(b1=x / 10)}
        train = purerl.make_train(CFG, **given)
        return numbers_of(train.given, train.env)

    (text,) = other_numbers(numbers(2), numbers(9))
    assert text.endswith("saved: env._goal 2 before, 9 now; optimizer.update.b1 0.2 before, 0.9 now")
    assert other_numbers(numbers(2), numbers(2)) == other_numbers({}, numbers(2)) == []


def test_objects_that_cannot_be_read_end_no_run():
    class Raises:
        @property
        def __dict__(self):
            raise RuntimeError("closed")

    env = purerl.make_train(CFG).env
    raises = Raises()
    assert numbers_of({"reward_shaper": lambda reward, _: raises}, env) == {}
    nested = []
    for _ in range(5000):
        nested = [nested]
    assert values_in(numbers_of({"env": Reach(2, nested=nested, many=[Reach(3)] * 10**5)}, env)) == {"env._goal": "2"}


def test_arguments_of_gymnasium_are_numbers():
    train = purerl.make_train(CFG, env=purerl.from_gymnasium(lambda: gymnasium.make("MountainCar-v0", goal_velocity=0.01)))
    assert numbers_of(train.given, train.env)["env.goal_velocity"] == "0.01"


@pytest.mark.slow
def test_runs_with_other_numbers_warn_when_they_resume_and_when_they_are_compared(tmp_path):
    cfg = CFG.replace(total_timesteps=64, lr_schedule="constant")
    for goal in (2, 9):
        purerl.fit(cfg, directory=tmp_path / str(goal), env=purerl.wrap_env(Reach(goal)), num_seeds=2)
    with pytest.warns(UserWarning, match=r"objects have other values than when the run was saved: env\._goal 2 before, 9 now"):
        purerl.load(tmp_path / "2", env=purerl.wrap_env(Reach(9)))
    for steps in (64, 128):  # a finished run, and a run that continues
        with pytest.warns(UserWarning, match=r"other values than when the run was saved: env\._goal 2 before, 9 now"):
            purerl.fit(cfg.replace(total_timesteps=steps), directory=tmp_path / "2", env=purerl.wrap_env(Reach(9)), num_seeds=2)
    with pytest.warns(UserWarning, match=r"env\._goal 9 before, 2 now"):
        purerl.restore(tmp_path / "9", purerl.make_train(cfg, env=purerl.wrap_env(Reach(2))))
    again = purerl.fit(cfg.replace(total_timesteps=128), directory=tmp_path / "9", env=purerl.wrap_env(Reach(9)), num_seeds=2)
    assert again.progress.updates == 2
    third = purerl.fit(cfg.replace(total_timesteps=128), directory=tmp_path / "3", env=purerl.wrap_env(Reach(3)), num_seeds=2)
    assert third.progress.updates == 2
    with pytest.warns(UserWarning, match=r"runs of .*Reach differ in env\._goal: 3, 9; is it one task\?"):
        purerl.compare({"a": [tmp_path / "9"], "b": [tmp_path / "3"]})
