import itertools
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest

import purerl
from purerl.runs.trainer import MAX_CHUNK
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def whole():
    """Train ten updates in one go."""
    return jax.jit(tiny(CFG.replace(total_timesteps=640)))(KEY)


def fitted(updates=10, **kwargs):
    return purerl.fit(CFG.replace(total_timesteps=64 * updates), env=Varied(), **kwargs)


def test_fit_is_the_same_training(whole):
    result = fitted()
    for got, want in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    metrics, wanted = purerl.summarize(result.metrics), purerl.summarize(whole.metrics)
    assert metrics.keys() == wanted.keys()
    assert {x.shape for x in metrics.values()} == {(10,)}
    np.testing.assert_array_equal(metrics["episodes"], wanted["episodes"])
    np.testing.assert_allclose(metrics["lr"], wanted["lr"], rtol=1e-6)


def test_the_length_of_a_chunk_does_not_matter():
    lengths = []
    measure = lambda progress: lengths.append(progress.metrics["lr"].total.shape[0])
    short = fitted(chunk_seconds=1e-9, recorders=(measure,))
    assert lengths == [1] * 10
    lengths.clear()
    assert digest(fitted(chunk_seconds=100.0, recorders=(measure,)).state) == digest(short.state)
    assert lengths == [1, 4, 5]


@pytest.mark.slow
def test_rows_of_metrics_do_not_depend_on_chunks(whole):
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


def test_seeds_side_by_side():
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


def test_progress_says_where_the_run_stands():
    seen = []
    fitted(chunk_seconds=1e-9, recorders=(seen.append,))
    assert [p.updates for p in seen] == list(range(1, 11))
    assert [p.steps for p in seen] == [64 * i for i in range(1, 11)]
    assert seen[-1].seconds_left == 0
    assert all(p.steps_per_second > 0 for p in seen)
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(seen))


def test_an_interrupt_ends_the_run_with_what_was_reached():
    def interrupt(progress):
        if progress.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    result = fitted(chunk_seconds=1e-9, recorders=(interrupt,))
    assert result.progress.updates == int(result.state.clock) == 3
    assert purerl.summarize(result.metrics)["lr"].shape == (3,)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_leaves_at_once():
    def interrupt(progress):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        fitted(recorders=(interrupt,))


@pytest.mark.slow
def test_fit_runs_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(fitted(updates=2)))
    thread.start()
    thread.join()
    assert results[0].progress.updates == 2


def test_one_program_for_every_chunk():
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    compiled = []
    fitted(updates=40, chunk_seconds=1e-9, recorders=(lambda p: compiled.append(sum("backend_compile" in e for e in events)),))
    assert compiled[0] == compiled[-1]


def test_a_chunk_never_outgrows_its_buffer():
    lengths = []
    cfg = CFG.replace(num_steps=2, num_epochs=1, num_minibatches=1, total_timesteps=8 * (MAX_CHUNK * 2 + 100))
    result = purerl.fit(
        cfg, env=Varied(), chunk_seconds=1e9, recorders=(lambda p: lengths.append(p.metrics["lr"].total.shape[0]),)
    )
    assert max(lengths) == MAX_CHUNK
    assert sum(lengths) == result.progress.updates == 2 * MAX_CHUNK + 100


def test_no_seed_is_refused():
    with pytest.raises(purerl.ConfigError, match="num_seeds"):
        fitted(num_seeds=0)
