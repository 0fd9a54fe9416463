"""Points and titles of plots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.runs.analysis import plots, statistics
from purerl.runs.analysis.plots import Curve
from purerl.studies.reading import read_scores
from tests.helpers.interrupted import fitted
from tests.helpers.probes import Varied

SMALL = purerl.PPOConfig(total_timesteps=2048, num_envs=4, num_steps=16, hidden=(8,))


def test_seed_without_episodes_is_left_out_of_the_plot():
    nan = np.nan
    values = np.array([[nan, 1.0, nan, 3.0, nan], [nan] * 5, [nan, nan, 4.0, 5.0, 6.0]])
    steps, shown = plots.fill_gaps(plots.Curve("a", np.arange(5), values, np.zeros(len(values), bool)))
    assert steps.tolist() == [2, 3, 4]  # from the first step at which both seeds have finished an episode
    assert shown.tolist() == [[2.0, 3.0, 3.0], [4.0, 5.0, 6.0]]
    steps, shown = plots.fill_gaps(plots.Curve("a", np.arange(5), values[1:2], np.zeros(1, bool)))
    assert (steps.size, shown.size) == (0, 0)
    _, shown = plots.fill_gaps(plots.Curve("a", np.arange(5), values, np.array([True, False, False])))
    assert shown.tolist() == [[4.0, 5.0, 6.0]]


@pytest.mark.long
@pytest.mark.each_landing("10")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*scores are from more than the last tenth:UserWarning")
@pytest.mark.parametrize("every", [3, 10])
def test_incomplete_last_rows_are_read(tmp_path, every):
    cfg = SMALL.replace(total_timesteps=7 * 64, metrics_every=every)
    metrics = purerl.fit(cfg, env=Varied(), num_seeds=2, directory=tmp_path).metrics
    whole = purerl.summarize(metrics)
    (curve,) = plots.curves_of(tmp_path)
    np.testing.assert_array_equal(curve.values, whole["episode_return"])
    np.testing.assert_array_equal(curve.steps, whole["steps"][0].cumsum())
    assert curve.steps[-1] == 7 * 64
    (row,) = read_scores(tmp_path, "final", "training")
    last = slice({3: -2, 10: -1}[every], None)  # the last row, and the row before if the last is shorter
    returns = metrics["episode_return"]
    np.testing.assert_allclose(row.scores, returns.total[:, last].sum(1) / returns.count[:, last].sum(1), rtol=1e-6)


def test_long_curves_are_averaged_into_few_points(tmp_path, monkeypatch):
    monkeypatch.setattr("purerl.runs.analysis.plots.POINTS", 4)
    result = fitted(directory=tmp_path)
    (curve,) = plots.curves_of(tmp_path)
    steps, values = curve.steps, curve.values
    assert steps.tolist() == [64, 256, 448, 640]
    totals, counts = (getattr(result.metrics["episode_return"], name) for name in ("total", "count"))
    np.testing.assert_allclose(values[0, 1], totals[1:4].sum() / counts[1:4].sum(), rtol=1e-6)


def test_plots_note_few_seeds(tmp_path, monkeypatch):
    curve = lambda seeds: [Curve("a", np.arange(4), np.random.default_rng(0).normal(size=(seeds, 4)), np.zeros(seeds, bool))]
    titles = {}
    for seeds in (3, 5):
        monkeypatch.setattr(plots, "curves_of", lambda *_, seeds=seeds: curve(seeds))
        titles[seeds] = purerl.plot(["a"], tmp_path / "a.png").axes[0].get_title()
    assert titles[3] == f"{titles[5]}\nfew seeds: {statistics.few_seeds([3])}"


def test_equal_names_of_directories_are_told_apart_by_their_paths(tmp_path):
    paths = [tmp_path / name / "_one" for name in ("a", "b")]
    for path in paths:
        fitted(2, directory=path)
    legend = purerl.plot(paths, tmp_path / "a.png").axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"{path} (1 seed)" for path in paths]
    legend = purerl.plot(paths[:1], tmp_path / "a.png", labels=np.array(["_$a$"])).axes[0].get_legend()
    assert legend.get_texts()[0].get_text() == " _$a$ (1 seed)"


@pytest.mark.slow
def test_diverged_runs_without_nan_in_the_metric_are_left_out(tmp_path):
    cfg = jax.vmap(lambda lr: SMALL.replace(lr=lr, total_timesteps=512, lr_schedule="constant"))(jnp.array([1e-3, 1e30]))
    result = purerl.fit(cfg, env=Varied(), directory=tmp_path, num_seeds=2, on_nonfinite="ignore")
    assert result.finite.tolist() == [True, True, False, False]
    assert [curve.diverged.tolist() for curve in plots.curves_of(tmp_path)] == [[False] * 2, [True] * 2]
