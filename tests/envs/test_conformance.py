import gymnax
import jax
import jax.numpy as jnp
import pytest

import purerl
from tests.helpers import broken
from tests.ideas.brax_like import hopper
from tests.ideas.dm_env_like import walk
from tests.ideas.simulator import simulator

OFFLINE = [name for name in gymnax.registered_envs if name != "MNISTBandit-bsuite"]  # MNISTBandit downloads its images
FEW = ("CartPole-v1",)


SOME = list(broken.BROKEN)[::12]


@pytest.mark.each_landing(
    "reward of NaN",
    "hidden Python state",
    "time limit as terminal",
    "final observation lost",
    "reset that leaks state",
    "rows with a common mean",
)
@pytest.mark.parametrize("name", [x if x in SOME else pytest.param(x, marks=pytest.mark.slow) for x in broken.BROKEN])
def test_check_env_reports_exactly_the_defect(name):
    env, says = broken.BROKEN[name]
    report = purerl.check_env(env, num_steps=60)
    assert len(report.problems) == 1, report
    assert says in report.problems[0]


WORKING = (broken.batch(), broken.batch(broken.rounded_once_more), simulator, hopper, walk)


@pytest.mark.each_landing("env3")
@pytest.mark.parametrize("env", [broken.Line(), *(pytest.param(env, marks=pytest.mark.slow) for env in WORKING)])
def test_check_env_passes_working_environments(env):
    report = purerl.check_env(env, num_steps=120)
    assert not report.problems, report
    assert "no episode ended" not in str(report)


@pytest.mark.each_landing("MountainCarContinuous-v0")
@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in OFFLINE])
def test_check_env_passes_gymnax_environments(name):
    with jax.numpy_rank_promotion("allow"):  # gymnax's Swimmer needs it
        assert not purerl.check_env(name).problems


@pytest.mark.slow
def test_check_env_reports_objects_that_are_no_environment():
    assert "has no method" in str(purerl.check_env(5))
    assert "did you mean" in str(purerl.check_env("CartPol-v1"))
    report = purerl.check_env(broken.Line(), num_steps=5)
    assert any("no episode ended" in note for note in report.notes)


class Scaled(broken.Line):
    """The walk on a line, observed in another unit: an array that a function makes from the position."""

    def __init__(self, see):
        self.see = see

    def reset(self, key):
        state, obs = super().reset(key)
        return state, self.see(obs[0])

    def step(self, key, state, action):
        state, obs, *rest = super().step(key, state, action)
        return state, self.see(obs[0]), *rest


SCALES = {
    "1 of the numbers in an observation vary by less than 1e-4": lambda at: jnp.stack([at, at * 1e-6, jnp.float32(0.1) + 0 * at]),
    "no value above 1, and is divided by 255": lambda at: jnp.broadcast_to(at > 0, (4, 4, 1)).astype(jnp.uint8),
    "has values above 10, and is not divided by 255": lambda at: jnp.broadcast_to(100 + at, (4, 4, 1)),
}


@pytest.mark.parametrize("note", SCALES)
def test_check_env_notes_observations_of_an_unsuited_scale(note):
    notes = purerl.check_env(Scaled(SCALES[note]), num_steps=30).notes
    assert [other for other in SCALES if any(other in x for x in notes)] == [note]
