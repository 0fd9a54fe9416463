import jax
import numpy as np
import pytest

import purerl
from tests.helpers.interrupted import fitted
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def whole():
    """Train ten updates in one program."""
    return jax.jit(tiny(CFG.replace(total_timesteps=640)))(KEY)


def test_fit_equals_one_jitted_run(whole):
    result = fitted()
    for got, want in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    metrics, wanted = purerl.summarize(result.metrics), purerl.summarize(whole.metrics)
    assert metrics.keys() == wanted.keys()
    assert {x.shape for x in metrics.values()} == {(10,)}
    np.testing.assert_array_equal(metrics["episodes"], wanted["episodes"])
    np.testing.assert_allclose(metrics["lr"], wanted["lr"], rtol=1e-6)


def test_result_is_independent_of_chunk_length():
    lengths = []
    measure = lambda progress: lengths.append(progress.metrics["lr"].total.shape[0])
    short = fitted(chunk_seconds=1e-9, recorders=(measure,))
    assert lengths == [1] * 10
    lengths.clear()
    assert digest(fitted(chunk_seconds=100.0, recorders=(measure,)).state) == digest(short.state)
    assert lengths == [1, 4, 5]


@pytest.mark.long
@pytest.mark.slow
def test_metrics_rows_are_independent_of_chunk_length(whole):
    cfg = CFG.replace(total_timesteps=640, metrics_every=4)
    by_one, by_many = (purerl.fit(cfg, env=Varied(), chunk_seconds=s).metrics for s in (1e-9, 100.0))
    assert digest(by_one) == digest(by_many)
    in_one_go = jax.jit(tiny(cfg))(KEY).metrics
    for name in whole.metrics:
        got, want = purerl.summarize(by_one)[name], purerl.summarize(in_one_go)[name]
        assert got.shape == want.shape == (3,)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(by_one["steps"].total, [256, 256, 128])
    rewards = np.asarray(whole.metrics["reward_max"].value)
    np.testing.assert_allclose(by_one["reward_max"].value, [rewards[i : i + 4].max() for i in (0, 4, 8)], rtol=1e-6)


@pytest.mark.slow
def test_seeds_of_one_fit_equal_single_fits():
    alone = fitted(seed=6)
    result = fitted(num_seeds=3, seed=5)
    metrics = purerl.summarize(result.metrics)
    assert {x.shape for x in metrics.values()} == {(3, 10)}
    assert result.progress.steps == 3 * 640
    assert int(result.state.clock) == 10  # one counter for all seeds
    exact = fitted(num_seeds=3, seed=5, exact=True)
    for together in (result, exact):
        for got, want in zip(jax.tree.leaves(together.state.params), jax.tree.leaves(alone.state.params), strict=True):
            np.testing.assert_allclose(got[1], want, rtol=1e-3, atol=1e-4)


def test_fit_without_compilation_is_refused():
    with jax.disable_jit(), pytest.raises(purerl.ConfigError, match="jax_disable_jit = True: must be False in fit"):
        purerl.fit(purerl.PPOConfig())
