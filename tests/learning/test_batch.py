"""Training sequences, cut from rollouts."""

import jax.numpy as jnp
import numpy as np

from purerl.learning.batch import sequences


def test_flat_sequences_are_time_major_samples():
    steps = jnp.arange(12).reshape(4, 3)
    data = sequences(steps, (), 1)
    np.testing.assert_array_equal(data.steps, np.arange(12)[None])


def test_full_length_sequences_are_whole_environments():
    steps, carry = jnp.arange(12).reshape(4, 3), jnp.arange(3)[None] * 10
    data = sequences(steps, carry, 4)
    np.testing.assert_array_equal(data.steps, steps)
    np.testing.assert_array_equal(data.carry, [0, 10, 20])


def test_chunks_are_contiguous_and_keep_their_own_hidden_state():
    T, B, L = 6, 3, 2
    steps = jnp.arange(T)[:, None] * 100 + jnp.arange(B)[None]
    carry = jnp.broadcast_to(steps[::L], (T // L, B))  # the hidden state of a chunk is the number of its first step
    data = sequences(steps, carry, L)
    assert data.steps.shape == (L, T * B // L)
    np.testing.assert_array_equal(data.steps[0], data.carry)
    np.testing.assert_array_equal(data.steps[1], data.carry + 100)


def test_whole_environment_sequences_match_the_reference_vector(vectors):
    given, expected = vectors["minibatch_layouts"]
    data = sequences(jnp.arange(12).reshape(given["T"], given["N"]), (), given["T"])
    np.testing.assert_array_equal(data.steps[:, 0], expected["env_columns_first_of_3"][0])
