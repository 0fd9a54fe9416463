"""Snapshots of gymnasium's environments."""

import enum
import functools
import pickle
import types

import gymnasium
import mujoco
import numpy as np
import pytest

import purerl
from purerl.envs.external.snapshots import Keeper, decode, encode
from tests.helpers.gymnasium_env import Ends

CFG = purerl.PPOConfig(total_timesteps=64 * 4, num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden=(8,))


class Varied(Ends):
    """An environment that shows the number of its instance in the observation."""

    made = 0

    def __init__(self):
        super().__init__()
        Varied.made += 1
        self.own = float(Varied.made)

    def _obs(self):
        return np.array([self.own, self.time], np.float64)


class Twins(Ends):
    """An environment with one array under two names, which steps change by one of the names."""

    def __init__(self):
        super().__init__()
        self.one = self.other = np.zeros(2)

    def step(self, action):
        self.one[0] += 1
        return super().step(action)


@pytest.mark.long
@pytest.mark.slow
def test_attributes_set_by_the_constructor_are_saved(tmp_path):
    cfg, env = CFG.replace(total_timesteps=128, lr_schedule="constant"), purerl.from_gymnasium(Varied)
    before = purerl.fit(cfg, env=env, directory=tmp_path).state.actor.obs[:, 0]
    after = purerl.fit(cfg.replace(total_timesteps=256), env=env, directory=tmp_path).state.actor.obs[:, 0]
    np.testing.assert_array_equal(before, after)


@pytest.mark.slow
def test_array_under_two_names_cannot_be_saved(tmp_path):
    cfg, env = CFG.replace(lr_schedule="constant"), purerl.from_gymnasium(Twins)
    purerl.fit(cfg.replace(total_timesteps=128), env=env, directory=tmp_path)
    with pytest.warns(UserWarning, match=r"one and other \(the same object\)"):
        purerl.fit(cfg, env=env, directory=tmp_path)


@pytest.mark.slow
def test_run_does_not_resume_with_other_wrappers(tmp_path):
    wrappers = []
    make = lambda: functools.reduce(lambda env, wrapper: wrapper(env), wrappers, Ends())
    cfg = CFG.replace(total_timesteps=128, lr_schedule="constant")
    purerl.fit(cfg, env=purerl.from_gymnasium(make), directory=tmp_path)
    wrappers.append(gymnasium.wrappers.RecordEpisodeStatistics)
    says = "saved with the wrappers Ends, but now has RecordEpisodeStatistics > Ends"
    with pytest.raises(purerl.EnvironmentFailed, match=says):
        purerl.fit(cfg.replace(total_timesteps=256), env=purerl.from_gymnasium(make), directory=tmp_path)


class Lazy(Ends):
    """An environment whose unsupported attribute is replaced by a function."""

    def __init__(self):
        super().__init__()
        self.helper = object()


def test_attributes_that_are_code_later_are_left_as_they_are():
    env = Lazy()
    keeper = Keeper(env)
    assert "helper" in str(keeper.snapshot()["missing"])
    env.helper = len
    keeper.restore(keeper.snapshot())
    assert env.helper is len


class Views(Ends):
    """An environment with a view of an array, and a list of a dict that is an attribute, too."""

    def __init__(self):
        super().__init__()
        self.board, self.hero = np.zeros((2, 2)), {"x": 0}
        self.row, self.heroes = self.board[0], [self.hero]


@pytest.mark.parametrize(("name", "missing"), [("board", "board and row"), ("hero", "hero and heroes")])
def test_attributes_that_share_parts_cannot_be_saved(name, missing):
    env = Views()
    keeper = Keeper(env)
    env.board[0], env.hero["x"] = 1 if name == "board" else 0, 1 if name == "hero" else 0
    assert keeper.snapshot()["missing"] == [f"{missing} (the same object)"]


def test_numbers_keep_their_types():
    for x in (np.float64(2.5), np.float32(2.5), np.int64(3), 2.5, 3, True):
        assert type(decode(encode(x))) is type(x)
    with pytest.raises(TypeError):
        encode(Phase.SECOND)


class Phase(enum.IntEnum):
    """A state of a game."""

    FIRST, SECOND = 1, 2


POLE = "<mujoco><worldbody><body><joint/><geom size='1' mass='2'/></body></worldbody></mujoco>"


class Pole(Ends):
    """An environment with a simulation of MuJoCo."""

    def __init__(self):
        super().__init__()
        self.model = mujoco.MjModel.from_xml_string(POLE)
        self.data = mujoco.MjData(self.model)


CHANGES = {  # what an environment may do, and what cannot be saved then
    "nothing": (lambda env: None, None),
    "state": (lambda env: env.data.qpos.fill(1.0), None),
    "copy": (lambda env: setattr(env, "seen", env.data.qpos.copy()), None),
    "method of its own": (lambda env: setattr(env, "helper", env.reset), None),
    "view": (lambda env: setattr(env, "seen", env.data.qpos), "Pole.seen (memory of another object)"),
    "views in a list": (lambda env: setattr(env, "seen", [env.data.qpos]), "Pole.seen (memory of another object)"),
    "mass": (lambda env: env.model.body_mass.fill(3.0), "a changed MjModel"),
    "gravity": (lambda env: env.model.opt.gravity.fill(3.0), "a changed MjModel"),
    "time step": (lambda env: setattr(env.model.opt, "timestep", 0.5), "a changed MjModel"),
    "hidden generator": (lambda env: setattr(env, "draw", np.random.default_rng(0).normal), "Pole.draw (method)"),
    "masked array": (lambda env: setattr(env, "seen", np.ma.masked_array([1.0, 2.0], [True, False])), "Pole.seen (MaskedArray)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_state_that_cannot_be_saved_is_named(name):
    change, missing = CHANGES[name]
    env, other = Pole(), Pole()
    keeper = Keeper(env)
    change(env)
    saved = keeper.snapshot()
    assert saved.get("missing") == (None if missing is None else [missing])
    assert keeper.renew() == (missing is None)
    if missing is None:
        assert keeper.snapshot()["values"] == Keeper(other).snapshot()["values"]


class Closures(Ends):
    """An environment whose functions hold the objects of attributes."""

    def __init__(self):
        super().__init__()
        self.board, self.free, self.names = board, free, names = np.zeros(3), [1], {"a": 1}
        self.seen = types.SimpleNamespace(all=lambda: (board.sum(), len(free), len(names)))


def test_renewed_attributes_stay_the_same_objects():
    env = Closures()
    see = env.seen.all
    del env.seen
    keeper = Keeper(env)
    env.board[0], env.names["b"] = 1.0, 2
    env.free.append(2)
    env.later = 3
    assert keeper.renew()
    assert see() == (0.0, 1, 1)
    assert not hasattr(env, "later")


def test_environment_with_attributes_that_were_unknown_is_not_renewed():
    env = Closures()
    keeper = Keeper(env)
    env.seen = None
    assert not keeper.renew()


def test_equal_numbers_of_other_types_are_restored():
    env, other = Twins(), Twins()
    env.own, other.own = 0.0, 0
    Keeper(other).restore(Keeper(env).snapshot())
    assert type(other.own) is float


def test_unpickled_arrays_can_be_saved():
    env = Ends()
    env.goal = pickle.loads(pickle.dumps(np.ones(3), protocol=5))
    assert "missing" not in Keeper(env).snapshot()


def test_attributes_that_have_not_changed_stay_the_same_object():
    one, other = Twins(), Twins()
    Keeper(other).restore(Keeper(one).snapshot())
    assert other.one is other.other
