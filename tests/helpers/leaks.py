"""JAX's check for leaked tracers, at the speed of a small heap."""

import contextlib
import gc

import jax


@contextlib.contextmanager
def checking_leaks():
    """Check for leaked tracers.

    JAX collects garbage for every trace that a reference cycle keeps alive. Each collection reads the whole heap, and
    the heap of a test session is large, so the objects that exist before the check are left out of the collections.
    """
    gc.collect()
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()
