"""Probe environments: each is so small that its solution is known, and reveals one kind of bug.

Probes have gymnax 1.0's methods and the base class `Probe`.
"""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from purerl.core.spaces import MultiBinary, MultiDiscrete


@struct.dataclass
class State:
    time: jax.Array
    kind: jax.Array


@struct.dataclass
class Params:
    max_steps_in_episode: int = 1000


ACTIONS = {
    "discrete": spaces.Discrete(2),
    "box": spaces.Box(-1.0, 1.0, (1,)),
    "multi_discrete": MultiDiscrete((2, 3)),
    "multi_binary": MultiBinary(2),
    "mixed": spaces.Dict({"which": spaces.Discrete(2), "where": spaces.Box(-1.0, 1.0, (1,))}),
}


def right_action(kind, target):
    """Return the action that `aim` rewards most. In an action of two dimensions, the second is the opposite of the first."""
    return target if kind in ("discrete", "mixed") else jnp.stack([target, 1 - target])


class Probe(Environment):
    """Base class of probes. Probes override `observe_state` and `reward_of`; episodes terminate after `length` steps."""

    length = 1
    kinds = 1
    width = 1
    limit = 1000
    kind = "discrete"

    @property
    def default_params(self):
        return Params(max_steps_in_episode=self.limit)

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jax.random.randint(key, (), 0, self.kinds, jnp.int32))
        return self.observe_state(state), state

    def step_env(self, key, state, action, params):
        after = state.replace(time=state.time + 1)
        return self.observe_state(after), after, self.reward_of(state, action), self.ends(after), {}

    def observe_state(self, state):
        return jnp.ones(self.width, jnp.float32)

    def reward_of(self, state, action):
        return jnp.float32(1)

    def ends(self, state):
        return state.time >= self.length

    def action_space(self, params=None):
        return ACTIONS[self.kind]

    def aim(self, action, target):
        """Return a reward of 1 for the right action and less for any other; `target` is 0 or 1."""
        if self.kind == "mixed":
            distance = action["where"][0] - (target.astype(jnp.float32) - jnp.float32(0.5))
            return (action["which"] == target) - jnp.square(distance)
        if self.kind == "box":
            return 1 - jnp.square(action[0] - (target.astype(jnp.float32) - jnp.float32(0.5)))
        return (action == right_action(self.kind, target)).astype(jnp.float32).mean()

    def goes(self, action):
        """Return 1 if the first dimension of an action is positive, otherwise 0."""
        action = action["which"] if self.kind == "mixed" else action
        first = action if self.kind in ("discrete", "mixed") else action[0]
        return (first > 0).astype(jnp.int32)


class Constant(Probe):
    """Reward 1, one step: V = 1."""


class ObsDependent(Probe):
    """Reward equal to the observation, -1 or 1, one step: V(obs) = obs."""

    kinds = 2

    def observe_state(self, state):
        return jnp.full(1, 2 * state.kind - 1, jnp.float32)

    def reward_of(self, state, action):
        return (2 * state.kind - 1).astype(jnp.float32)


class Delayed(Probe):
    """Two steps, reward 1 for the second: V(0) = gamma, V(1) = 1."""

    length = 2

    def observe_state(self, state):
        return jnp.full(1, state.time, jnp.float32)

    def reward_of(self, state, action):
        return (state.time == 1).astype(jnp.float32)


class ActionDependent(Probe):
    """One step, in which action 1 is right."""

    def reward_of(self, state, action):
        return self.aim(action, jnp.int32(1))


class Both(ObsDependent):
    """One step, whose observation names the right action."""

    def reward_of(self, state, action):
        return self.aim(action, state.kind)


class TimeLimit(Probe):
    """Reward 1, truncated every 8 steps: V = 1 / (1 - gamma), if values are bootstrapped at time limits."""

    length = 10**6
    limit = 8


class Endless(TimeLimit):
    """Reward 1, in episodes longer than any test."""

    limit = 10**9


@struct.dataclass
class Dose:
    max_steps_in_episode: int = 1000
    poison: float = 0.0
    at: int = 5


class Poisoned(TimeLimit):
    """Reward 1; in step `at` of an episode, a `poison` of 1 makes the reward NaN, 2 infinite, and 3 makes the observation NaN."""

    default_params = Dose(max_steps_in_episode=40)

    def step_env(self, key, state, action, params):
        obs, after, reward, ends, info = super().step_env(key, state, action, params)
        kind = jnp.where(after.time == params.at, jnp.float32(params.poison), jnp.float32(0))
        reward = jnp.where(kind == 1, jnp.float32(jnp.nan), jnp.where(kind == 2, jnp.float32(jnp.inf), reward))
        return jnp.where(kind == 3, jnp.full_like(obs, jnp.nan), obs), after, reward, ends, info


class BothFlags(Probe):
    """Reward 1, and termination in the step of the time limit: V(s0) = 1 + gamma + gamma^2 + gamma^3."""

    length = 4
    limit = 4
    width = 5

    def observe_state(self, state):
        return jax.nn.one_hot(state.time, 5)


class FinalObs(Probe):
    """Episodes of three kinds. The rewards are 0, 1 and 5. Kind 1 is truncated, with kind 2's observation as the final one.

    V(1) = 1 + 5 gamma, if the value of the observation before the reset is bootstrapped.
    """

    kinds = 3
    width = 3
    length = 10**6

    def observe_state(self, state):
        return jax.nn.one_hot(state.kind, 3)

    def reward_of(self, state, action):
        return jnp.array([0.0, 1.0, 5.0])[state.kind]

    def step_env(self, key, state, action, params):
        reward, cut = self.reward_of(state, action), state.kind == 1
        after = State(state.time + 1, jnp.where(cut, 2, state.kind).astype(jnp.int32))
        # Only kind 1 ends by the time limit: the others terminate.
        return self.observe_state(after), after, reward, ~cut, {}

    def is_truncated(self, state, params):
        return state.time >= 1


class Varied(Probe):
    """Episodes of 2 to 5 steps that terminate or are truncated, with rewards that depend on actions."""

    kinds = 3
    width = 4
    limit = 5

    def observe_state(self, state):
        return jnp.append(jax.nn.one_hot(state.kind, 3), state.time.astype(jnp.float32) / 5)

    def step_env(self, key, state, action, params):
        goes = self.goes(action)
        after = State(state.time + 1, (state.kind + goes + 1) % 3)
        reward = jnp.where(after.kind == 2, jnp.float32(1), jnp.float32(-0.1)) + jnp.float32(0.5) * goes.astype(jnp.float32)
        return self.observe_state(after), after, reward, (after.kind == 0) & (after.time > 1), {}


class Episodes37(Probe):
    """Reward 1, episodes of 37 steps."""

    length = 37


class Rich(Varied):
    """`Varied` with a dict observation: a vector, a category, an action mask, and an entry for the critic only.

    `info["illegal"]` is 1 for an invalid action.
    """

    kind = "multi_discrete"

    def observe_state(self, state):
        even = state.time % 2 == 0
        return {
            "seen": super().observe_state(state),
            "index": state.kind,
            "legal": jnp.stack([jnp.bool_(True), even, state.kind != 0, jnp.bool_(True), ~even]),
            "secret": jax.nn.one_hot(state.time, 6),
        }

    def observation_space(self, params=None):
        return spaces.Dict({"index": spaces.Discrete(3)})

    def step_env(self, key, state, action, params):
        legal = self.observe_state(state)["legal"]
        choice = action.astype(jnp.int32)
        allowed = legal[choice[0]] & legal[2 + choice[-1]]
        obs, after, reward, ends, _ = super().step_env(key, state, action, params)
        return obs, after, reward, ends, {"illegal": (~allowed).astype(jnp.float32), "time": after.time}


def acting(probe, kind):
    """Return the same probe with actions of another kind."""
    return type(kind + probe.__name__, (probe,), {"kind": kind})


def boxed(probe):
    return acting(probe, "box")
