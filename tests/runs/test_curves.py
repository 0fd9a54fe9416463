"""The file of a run's metrics: exact, compact, and robust to damage."""

import warnings

import jax
import numpy as np
import pytest

from purerl.core.metrics import Max, Mean
from purerl.runs.storage.curves import FILE, LINE, Curves, Header, read, row_dtype
from tests.helpers.tiny import digest

SHAPES = {"loss": Mean(jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.int32))}
SHAPES |= {f"loss/{i}": Max(jax.ShapeDtypeStruct((2,), np.float32)) for i in range(22)}


def rows(count):
    rng = np.random.default_rng(count)
    special = np.array([0x7FC00001, 0x7F800000, 0x80000000], np.uint32).view(np.float32)
    draw = lambda *shape: np.where(rng.random(shape) < 0.1, rng.choice(special, shape), rng.normal(size=shape)).astype(np.float32)
    found = {name: Max(draw(2, count)) for name in SHAPES if name != "loss"}
    return {"loss": Mean(draw(count), np.full(count, 3, np.int32))} | found


def written(directory, pieces, every=1):
    curves = Curves(Header(row_dtype(SHAPES), every, 64 * every, ((None, 0), (None, 1))), directory / FILE)
    for count in pieces:
        curves.append(rows(count))
        curves.flush()
    curves.close()
    return curves


def test_rows_are_read_exactly_and_stored_compactly(tmp_path):
    curves = written(tmp_path, [1000, 3, 500])
    found, header = read(tmp_path)
    assert digest(found) == digest(curves.whole())
    assert header.runs == ((None, 0), (None, 1))
    size = 1503 * row_dtype(SHAPES).itemsize
    assert (tmp_path / FILE).stat().st_size < 1.5 * size


def test_resuming_drops_rows_after_the_update(tmp_path):
    whole = written(tmp_path, [5, 4], every=3).whole()
    again = Curves(Header(row_dtype(SHAPES), 3, 192), tmp_path / FILE)
    with warnings.catch_warnings(action="error"):
        again.begin(5)
    again.append(rows(4))
    assert digest(again.whole()) == digest(whole)


def test_damaged_line_loses_only_its_rows(tmp_path):
    written(tmp_path, [10 * LINE])
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b"A", b"B")
    (tmp_path / FILE).write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match=rf"damaged or missing: {LINE} of {10 * LINE} records"):
        found, _ = read(tmp_path)
    assert (found["loss"].count == 0).sum() == LINE
