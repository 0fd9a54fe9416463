"""States of external environments, of which only the newest can be stepped."""

import threading

import jax
import numpy as np
import pytest

import purerl
from purerl.envs.external import host
from tests.helpers.gymnasium_env import Ends
from tests.helpers.tiny import digest

CFG = purerl.PPOConfig(total_timesteps=64 * 4, num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden=(8,))
CARTPOLE = CFG.replace(env="gymnasium/CartPole-v1")


@pytest.mark.slow
def test_only_the_newest_state_can_be_stepped():
    train = purerl.make_train(CARTPOLE)
    init, update = jax.jit(train.init), jax.jit(train.update)
    first = init(jax.random.key(0))
    second, _ = update(first)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"this state is outdated: from step 0, but its environments are at step 16"
    ):
        jax.block_until_ready(update(first))
    assert "outdated" in str(host.take_failure())
    jax.block_until_ready(update(second))  # the newer state goes on
    for seed in (1, 2):
        init(jax.random.key(seed))
    with pytest.raises(jax.errors.JaxRuntimeError, match="closed"):
        jax.block_until_ready(update(second))
    with pytest.raises(purerl.ConfigError, match="do not support jax"):
        jax.eval_shape(jax.vmap(train.init), jax.random.split(jax.random.key(0), 2))


@pytest.mark.slow
def test_evaluations_do_not_affect_training():
    train = purerl.make_train(CARTPOLE)
    init, update, evaluate = jax.jit(train.init), jax.jit(train.update), jax.jit(lambda *args: train.evaluate(*args, 4))

    def trained(evaluations):
        state = init(jax.random.key(0))
        for _ in range(2):
            for i in range(evaluations):
                assert evaluate(state, jax.random.key(i)).finished.all()
            state, _ = update(state)
        return digest((state.params, state.actor.obs))

    assert trained(0) == trained(2)


def test_evaluations_reuse_their_environments():
    train = purerl.make_train(CARTPOLE)
    state, before = jax.jit(train.init)(jax.random.key(0)), len(host._open)
    for i in range(4):
        train.evaluate(state, jax.random.key(i), 2, max_steps=3)
    assert len(host._open) <= before + host.SETS


class Locked(Ends):
    """An environment with an attribute that cannot be restored."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("env", [Ends, Locked])  # their rewards are the number of episodes so far
def test_environments_are_fresh_in_each_evaluation_and_each_training(env):
    train = purerl.make_train(CFG.replace(total_timesteps=64), env=purerl.from_gymnasium(env))
    run = jax.jit(train)
    rewards = [run(jax.random.key(0)).metrics["reward"].total.item() for _ in range(4)]
    assert len(set(rewards)) == 1
    state = train.init(jax.random.key(0))
    returns = [train.evaluate(state, jax.random.key(0), 3, max_steps=4).returns for _ in range(4)]
    np.testing.assert_array_equal(returns, np.zeros((4, 3)))
