"""Checks for finite numbers."""

import jax.numpy as jnp

from purerl.core.finite import nonfinite_rows


def test_only_float_entries_are_checked_for_finiteness():
    names = lambda obs: set(nonfinite_rows(obs, "observation"))
    assert names(jnp.zeros((2, 3), jnp.uint8)) == set()
    assert names({"a": jnp.zeros(2, jnp.int32), "b": (jnp.zeros(2, jnp.bfloat16),)}) == {"observation/b/0"}
    assert names(jnp.zeros(2)) == {"observation"}
