"""Dependence of outputs on inputs."""

import jax
import jax.numpy as jnp

from purerl.core.dependence import inputs_read

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def test_only_inputs_that_reach_an_output_are_read():
    def function(numbers, last):
        unused = numbers["a"] * 2  # noqa: F841
        return jax.lax.cond(numbers["b"] > 0, lambda: numbers["c"], lambda: 0.0), last

    assert inputs_read(function, dict.fromkeys("abcd", NUMBER), NUMBER) == [False, True, True, False, True]


def test_inputs_of_effects_are_read():
    assert inputs_read(lambda x, y: jax.debug.print("{}", x), NUMBER, NUMBER) == [True, False]
