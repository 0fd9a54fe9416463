"""APPO's ring of replayed rollouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.acting.rollout import collect
from purerl.acting.wrappers import with_statistics as as_actors_see
from purerl.learning.replay import empty_ring, recompute_outputs, ring_batch, ring_drop_newest, ring_push, ring_select, ring_take
from tests.helpers.appo import FRESH, KEY, MEMORY, made


@pytest.mark.slow
def test_discarded_update_does_not_count_as_a_use_of_a_rollout():
    train = made(FRESH)
    state = train.init(KEY)
    actor, rollout, _ = jax.jit(lambda s: collect(train.env, train.network, s.params, s.actor, KEY, 2))(state)
    one = ring_batch(rollout, actor, 2)
    before, clock = ring_push(empty_ring(one, 3), state.clock, one, jnp.int32(0)), state.clock + 1
    after, _ = ring_select(ring_push(before, clock, one, jnp.int32(0)), 4, "newest", KEY, jnp.bool_(True))
    assert after.uses[:2].tolist() == [1, 1]
    assert ring_drop_newest(after, clock, before).uses.tolist() == before.uses.tolist()


@pytest.mark.each_landing("2-newest", "2-random")
@pytest.mark.slow
@pytest.mark.parametrize("order", ["newest", "random"])
@pytest.mark.parametrize("max_uses", [1, 2, 4])
def test_each_rollout_is_used_at_most_max_uses_times(order, max_uses):
    train = made(FRESH)
    state = train.init(KEY)
    actor, rollout, _ = jax.jit(lambda s: collect(train.env, train.network, s.params, s.actor, KEY, 2))(state)
    ring, clock, uses = empty_ring(ring_batch(rollout, actor, 2), 4), state.clock, {}

    @jax.jit
    def update(ring, clock, i, key):
        marked = rollout.replace(steps=rollout.steps.replace(reward=jnp.full((2, 4), i, jnp.float32)))
        ring = ring_push(ring, clock, ring_batch(marked, actor, 2), jnp.int32(0))
        ring, places = ring_select(ring, max_uses, order, key, jnp.bool_(True))
        return ring, ring_take(ring, places).rollout.steps.reward

    for i in range(40):
        ring, rewards = update(ring, clock, i, jax.random.fold_in(KEY, i))
        rewards = np.asarray(rewards)[0].reshape(4, 4)[:, 0].tolist()
        assert rewards[0] == i
        for number in set(rewards):
            uses[number] = uses.get(number, 0) + 1
            assert i - number < 4
        counts = [rewards.count(number) for number in set(rewards)]
        if order == "newest":
            assert len(set(rewards)) == min(max_uses, i + 1)
            assert max(counts) - min(counts) <= 1
        clock = clock.replace(low=clock.low + 1)
    finished = [uses[i] for i in range(36)]
    assert set(finished) == {max_uses} if order == "newest" else 1 <= min(finished) <= max(finished) <= max_uses
    if order == "random" and max_uses > 2:
        assert len(set(finished)) > 1


@pytest.mark.parametrize("changes", [{}, pytest.param(MEMORY, marks=pytest.mark.slow)])
def test_recomputed_outputs_equal_those_of_acting(changes):
    """Values, including those before a reset, and policies are recomputed with unchanged parameters."""
    train = made(FRESH.replace(**changes))
    state = train.init(KEY)
    network, length = as_actors_see(train.cfg, train.network, state), train.cfg.training_length

    def both(state):
        options = {"length": length, "keep_next_obs": True}
        actor, rollout, _ = collect(train.env, network, state.params, state.actor, KEY, 16, **options)
        return rollout.steps, *recompute_outputs(network, state.params, ring_batch(rollout, actor, 16), length)

    steps, outputs, next_value = jax.jit(both)(state)
    assert steps.truncated.sum() > 1
    np.testing.assert_allclose(outputs.value, steps.value, atol=1e-6)
    np.testing.assert_allclose(next_value, steps.next_value, atol=1e-6)
    np.testing.assert_allclose(outputs.policy.logits, steps.policy.logits, atol=1e-6)
