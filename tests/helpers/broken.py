"""Environments with one defect each, and a part of the problem that `check_env` reports for each."""

import itertools

import jax
import jax.numpy as jnp

import purerl


class Line:
    """A correct walk on a line, which ends at 4 or at its time limit."""

    action_space = purerl.Discrete(2)
    max_steps = 12

    def reset(self, key):
        at = jax.random.uniform(key, minval=-1.0)
        return {"at": at, "hidden": jnp.float32(0)}, at[None]

    def step(self, key, state, action):
        at = state["at"] + 2.0 * action - 1.0
        return {**state, "at": at}, at[None], at, at > 4, False, {}


class Drifting(Line):
    def step(self, key, state, action):
        state, *rest = super().step(key, state, action)
        return {**state, "at": state["at"].astype(jnp.bfloat16)}, *rest


class RewardVector(Line):
    def step(self, key, state, action):
        state, obs, reward, *rest = super().step(key, state, action)
        return state, obs, reward[None], *rest


class FloatFlag(Line):
    def step(self, key, state, action):
        *rest, terminated, truncated, info = super().step(key, state, action)
        return *rest, terminated.astype(jnp.float32), truncated, info


class NotANumber(Line):
    def step(self, key, state, action):
        state, obs, reward, *rest = super().step(key, state, action)
        return state, obs, jnp.log(reward), *rest


class OutOfRange(Line):
    observation_space = purerl.Discrete(3)

    def reset(self, key):
        return super().reset(key)[0], jnp.int32(0)

    def step(self, key, state, action):
        state, obs, *rest = super().step(key, state, action)
        return state, jnp.int32(obs[0] + 2), *rest


class OutOfRangeAtFirst(Line):
    observation_space = purerl.Discrete(40)

    def reset(self, key):
        return super().reset(key)[0], jnp.int32(40)

    def step(self, key, state, action):
        state, obs, *rest = super().step(key, state, action)
        return state, jnp.int32(obs[0] + 20), *rest


class HiddenCounter(Line):
    counter = itertools.count()

    def step(self, key, state, action):
        state, obs, reward, *rest = super().step(key, state, action)
        return state, obs, reward + next(self.counter), *rest


class ObservationOfAnotherShape(Line):
    def step(self, key, state, action):
        state, obs, *rest = super().step(key, state, action)
        return state, jnp.concatenate([obs, obs]), *rest


def batch(change=lambda after, before, fresh, state: after, limit=12):
    """Return `Line` as a batched environment, whose step results `change` modifies."""
    good = purerl.wrap_env(Line())

    def step(keys, state, action):
        fresh = good.reset(keys[1])
        return change(good.step(keys, state, action), state, fresh, state)

    return good._replace(step=step, max_steps=limit, truncates_after=limit)


def rounded_once_more(after, *_):
    """Round `next_obs` as another kernel may."""
    return after.replace(next_obs=after.next_obs * (1 + jnp.finfo(jnp.float32).eps))


def done(after):
    return after.terminated | after.truncated


def as_terminal(after, *_):
    return after.replace(terminated=done(after), truncated=jnp.zeros_like(after.truncated))


def after_the_reset(after, *_):
    return after.replace(next_obs=after.obs)


def remembered(after, before, fresh, state):
    (inner, count) = after.env_state
    (old, _) = before
    hidden = old["hidden"] + 1.0
    return after.replace(env_state=({**inner, "hidden": hidden}, count), reward=after.reward + hidden)


def mixed(after, *_):
    return after.replace(reward=after.reward + after.reward[0])


def centred(after, *_):
    return after.replace(reward=after.reward - after.reward.mean())


def late_clock(after, before, fresh, state):
    (inner, _), (_, count) = after.env_state, before
    return after.replace(env_state=(inner, count + 1), truncated=count + 1 >= 12)


def late(after, before, fresh, state):
    return after.replace(obs=jnp.where(done(after)[:, None], after.obs, before[0]["at"][:, None]))


BROKEN = {
    "state of another dtype": (Drifting(), "as after a reset"),
    "observation of another shape": (ObservationOfAnotherShape(), "the observation after a step must be"),
    "reward of one entry": (RewardVector(), "env: reward = 'float32[1]': must be a float32 scalar"),
    "flag of floats": (FloatFlag(), "env: terminated = 'float32[]': must be a bool scalar"),
    "reward of NaN": (NotANumber(), "rewards are not finite"),
    "category out of range": (OutOfRange(), "outside of the declared space"),
    "hidden Python state": (HiddenCounter(), "not deterministic"),
    "time limit as terminal": (batch(as_terminal), "time limits are reported as terminal states"),
    "wrong time limit": (batch(limit=9), "more than its time limit of 9"),
    "truncation before `truncates_after`": (batch()._replace(truncates_after=20), "`truncates_after` = 20"),
    "final observation lost": (batch(after_the_reset), "the final or the first observation is missing"),
    "reset that leaks state": (batch(remembered), "state leaks across resets"),
    "rows that influence each other": (batch(mixed), "influence each other"),
    "rows with a common mean": (batch(centred), "influence each other"),
    "reset that keeps the step count": (batch(late_clock, limit=None), "state leaks across resets"),
    "first category out of range": (OutOfRangeAtFirst(), "a first observation is outside of the declared space"),
    "observation a step late": (batch(late), "`obs` differs from `next_obs`"),
}
