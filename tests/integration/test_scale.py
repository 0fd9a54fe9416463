"""Programs, results and states do not grow with the length of a run."""

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.runs.logging.recorders import Csv, JsonLines, TensorBoard
from tests.helpers.probes import Varied
from tests.helpers.programs import compiles, equations
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)
LENGTHS = [10**5, 10**8, 10**12]


def size(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.slow
def test_result_size_per_update_is_small_and_constant():
    cfg = purerl.PPOConfig(num_envs=64)
    runs = [jax.eval_shape(purerl.make_train(cfg.replace(total_timesteps=n)), KEY) for n in LENGTHS]
    updates = [cfg.replace(total_timesteps=n).num_updates for n in LENGTHS]
    assert len({size(run.state) for run in runs}) == 1
    bytes_each = {size(run.metrics) // n for run, n in zip(runs, updates, strict=True)}
    assert len(bytes_each) == 1
    assert bytes_each.pop() < 256
    assert {x.ndim for x in jax.tree.leaves(runs[0].metrics)} == {1}


@pytest.mark.slow
def test_metrics_every_reduces_the_metrics_rows():
    cfg = purerl.PPOConfig(num_envs=64, metrics_every=1000)
    runs = [jax.eval_shape(purerl.make_train(cfg.replace(total_timesteps=n)), KEY) for n in LENGTHS]
    rows = [-(-cfg.replace(total_timesteps=n).num_updates // 1000) for n in LENGTHS]
    assert [run.metrics["lr"].total.shape for run in runs] == [(n,) for n in rows]


SIZES = [  # no batch size is a square number, for which the shuffle has fewer equations
    ("num_steps", 10, 420),  # at most one truncation of an environment
    ("num_steps", 3000, 9000),
    ("num_envs", 4, 4096),
    ("num_epochs", 1, 10),
    ("num_minibatches", 1, 32),
    ("total_timesteps", 1, 10**6 * 512),
]


@pytest.mark.each_landing("num_steps-10-420", "num_envs-4-4096")
@pytest.mark.slow
@pytest.mark.parametrize(("field", "small", "large"), SIZES)
def test_program_size_is_independent_of_run_sizes(field, small, large):
    cfg = purerl.PPOConfig()
    programs = [jax.make_jaxpr(purerl.make_train(cfg.replace(**{field: n})))(KEY).jaxpr for n in (small, large)]
    counts = [equations(program) for program in programs]
    assert counts[0] == counts[1] > 500


@pytest.mark.slow
def test_program_size_is_independent_of_the_number_of_seeds():
    train = purerl.make_train(purerl.PPOConfig())
    counts = [equations(jax.make_jaxpr(jax.vmap(train))(jax.random.split(KEY, n)).jaxpr) for n in (1, 64)]
    assert counts[0] == counts[1]


@pytest.mark.slow
@pytest.mark.as_users
@pytest.mark.each_landing("num_steps")
@pytest.mark.parametrize("field", ["num_envs", "num_steps"])
def test_memory_is_linear_in_the_rollout(field):
    sizes = [64, 256, 512]
    trains = [tiny(CFG.replace(num_minibatches=4, **{field: n})) for n in sizes]
    needed = [jax.jit(train.update).lower(jax.eval_shape(train.init, KEY)).compile().memory_analysis() for train in trains]
    needed = np.array([memory.temp_size_in_bytes for memory in needed], float)
    slope = (needed[-1] - needed[0]) / (sizes[-1] - sizes[0])
    np.testing.assert_allclose(needed, needed[0] + slope * (np.array(sizes) - sizes[0]), rtol=0.1)
    rollout = [train.plan.rollout_bytes for train in trains]
    assert needed[-1] < 8 * rollout[-1]


def test_new_seeds_and_learning_rates_do_not_recompile():
    run = jax.jit(lambda cfg, key: tiny(cfg)(key))
    run(CFG.replace(lr=jnp.float32(1e-3)), KEY)
    key, rate = jax.random.key(1), jnp.float32(1e-2)
    before = compiles()
    run(CFG.replace(lr=rate), key)
    assert compiles() == before


@pytest.mark.slow
@pytest.mark.as_users
def test_arrays_programs_and_memory_stay_constant_over_200_chunks(tmp_path):
    """The run writes checkpoints and files of metrics."""
    alive, compiled, resident = [], [], []

    def look(progress):
        alive.append(len(jax.live_arrays()))
        compiled.append(compiles())
        resident.append(int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    cfg = CFG.replace(total_timesteps=64 * 200, num_epochs=1)
    files = (JsonLines(tmp_path / "a.jsonl"), Csv(tmp_path / "a.csv"), TensorBoard(tmp_path / "tensorboard"))
    purerl.fit(cfg, env=Varied(), directory=tmp_path, save_every=20, chunk_seconds=1e-9, recorders=(look, *files))
    assert len(alive) == 200
    assert len(set(alive[1:])) == 1
    assert compiled[0] == compiled[-1]
    slope = np.polyfit(np.arange(40, 200), resident[40:], 1)[0]
    assert slope < 20_000
