"""JAX's check for leaked tracers, without the cost of a large heap."""

import contextlib
import gc

import jax


@contextlib.contextmanager
def checking_leaks():
    """Check for leaked tracers.

    JAX collects garbage for every trace that a reference cycle keeps alive. Each collection reads the whole heap, which is
    large in a test session. So objects that exist before the check are excluded from the collections.
    """
    gc.collect()
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()
