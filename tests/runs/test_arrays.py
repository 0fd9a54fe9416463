"""Arrays of trees on the host."""

import jax
import jax.numpy as jnp
import numpy as np

from purerl.runs.storage import arrays
from purerl.runs.storage.checkpoint import Store
from tests.helpers.tiny import digest


def test_every_kind_of_array_is_restored_bit_for_bit(tmp_path):
    tree = {
        "nan payload": np.array([0x7FC00001, 0xFFC12345], np.uint32).view(np.float32),
        "zeros": np.array([0.0, -0.0], np.float32),
        "half": jnp.array([1.5, -3], jnp.bfloat16),
        "bytes": jnp.arange(5, dtype=jnp.uint8),
        "flags": jnp.array([True, False]),
        "scalar": jnp.uint32(2**32 - 1),
        "empty": jnp.zeros((0, 3)),
        "nothing": (),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(7, impl="rbg"), 3),
    }
    store = Store(tmp_path)
    store.save(0, tree, {"note": "x"})
    store.wait()
    saved = store.load(0)
    back = arrays.to_tree(saved.arrays, tree)
    assert digest(back) == digest(tree)
    assert saved.record["note"] == "x"
    assert [str(x.dtype) for x in jax.tree.leaves(back)] == [str(x.dtype) for x in jax.tree.leaves(tree)]
