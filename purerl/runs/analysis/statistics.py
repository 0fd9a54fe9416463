"""Aggregate statistics over seeds and over tasks, as in Agarwal et al. 2021, arXiv:2108.13264."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

FEW = 5  # with fewer seeds, intervals are too narrow
COVERAGE = {2: 50, 3: 75, 4: 88}  # by number of seeds: at most this % of intervals contain the true value


def iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the first axis, `[seeds, ...] -> [...]`.

    Of `n` scores, the `n // 4` lowest and the `n // 4` highest are left out, as in `scipy.stats.trim_mean` and rliable. If a
    score is NaN, the result is NaN.

    Example:
        >>> float(purerl.iqm(np.array([-100.0, 1, 2, 3, 4, 5, 6, 100])))
        3.5
    """
    scores = np.atleast_1d(scores)
    cut = len(scores) // 4
    middle = np.sort(scores, axis=0)[cut : len(scores) - cut].mean(0, dtype=np.float64)
    return np.where(np.isnan(scores).any(0), np.nan, middle)[()]


def interval(scores: np.ndarray, statistic: Callable = iqm, resamples: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % percentile bootstrap interval of a statistic over seeds: its lower and its upper end, each `[...]`.

    With one seed, both ends are NaN. Intervals of 2, 3 and 4 seeds are too narrow: at most 50, 75 and 88 % of them, respectively,
    contain the true value.

    Example:
        >>> low, high = purerl.interval(np.arange(8.0))
        >>> bool(low < 3.5 < high)
        True
    """
    return stratified_interval([np.asarray(scores)], statistic, resamples)


def few_seeds(counts: Iterable[int]) -> str:
    """Return a note on intervals from too few seeds; "" if all numbers of seeds are large enough."""
    few = sorted({count for count in counts if count < FEW})
    said = [f"{COVERAGE[n]} % of intervals from {n} seeds" for n in few if n in COVERAGE]
    said = [f"at most {' and '.join(said)} contain the true value, not 95 %"] if said else []
    return "; ".join((["one seed has no interval"] if 1 in few else []) + said)


def with_interval(numbers: tuple[float, float, float], text: Callable[[float], str]) -> str:
    """Return a statistic and its interval as text, "1.0 (0.5 to 1.5)"; without an interval, the statistic alone."""
    middle, low, high = map(text, numbers)
    return middle if np.isnan(numbers[1]) else f"{middle} ({low} to {high})"


def format_number(number: float) -> str:
    """Return a score as text: with three digits, or above 10 with one decimal."""
    return f"{number:.3g}" if abs(number) < 10 else f"{number:.1f}"


def format_spread(values: np.ndarray) -> str:
    """Return up to eight values as text; for more values, their mean, minimum and maximum."""
    if len(values) <= 8:
        return ", ".join(f"{x:.1f}" for x in values)
    return f"{values.mean():.1f} on average, {values.min():.1f} to {values.max():.1f}"


# --- over several tasks -----------------------------------------------------------------------------------------------

Statistic = Callable[[np.ndarray], np.ndarray]


def stratified_interval(
    scores: Sequence[np.ndarray], statistic: Statistic = iqm, resamples: int = 10_000
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % percentile interval of a statistic of all scores, by a bootstrap that resamples seeds within each task.

    With one task, the result is that of `interval`. If a task has one seed, both ends are NaN.

    Args:
        scores: scores of each task, `[seeds, ...]`; normalised, so that they can be pooled.
        statistic: function of the scores over the first axis.
        resamples: number of resamples.
    """
    if min(map(len, scores)) < 2:
        unknown = np.full(np.shape(scores[0])[1:], np.nan)[()]
        return unknown, unknown
    rng = np.random.default_rng(0)
    drawn = [x[rng.integers(len(x), size=(resamples, len(x)))].swapaxes(0, 1) for x in scores]
    low, high = np.percentile(statistic(np.concatenate(drawn)), [2.5, 97.5], axis=0)
    return low, high


def profile(scores: Sequence[np.ndarray], thresholds: np.ndarray) -> np.ndarray:
    """Return a performance profile, `[thresholds]`: the share of runs with a score above each threshold, averaged over tasks."""
    return np.mean([(x[:, None] > thresholds).mean(0) for x in scores], axis=0)


def improvement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the probability that a run of ours scores above a run of theirs, averaged over tasks; a tie counts as half.

    Args:
        ours, theirs: scores of the same tasks in the same order, each `[seeds]`.

    Example:
        >>> from purerl.runs.analysis.statistics import improvement
        >>> improvement([np.array([1.0, 2.0])], [np.array([0.0, 2.0])])
        0.625
    """
    above = lambda x, y: (x[:, None] > y).mean() + (x[:, None] == y).mean() / 2
    return float(np.mean([above(x, y) for x, y in zip(ours, theirs, strict=True)]))


def improvement_interval(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the 95 % interval of `improvement`; both ends are NaN if a task has 1 seed.

    The interval of a task with m and n seeds has the probabilities p whose distance to the found one is at most

        1.96 * sqrt(p * (1 - p) * (1 + k * (1 - p) / (2 - p) + k * p / (1 + p)) / (m * n)),  k = (m + n) / 2 - 1

    (Newcombe 2006, doi:10.1002/sim.2324, method 5). Unlike a bootstrap, it has a width if all runs of one side are better. Over
    several tasks, the distances of the ends to the found probabilities are added as squares (Zou and Donner 2008).
    """
    if min(map(len, (*ours, *theirs))) < 2:
        return np.nan, np.nan
    p, below, above = np.linspace(0, 1, 10_001), 0.0, 0.0
    for x, y in zip(ours, theirs, strict=True):
        found, k = improvement([x], [y]), (len(x) + len(y)) / 2 - 1
        spread = p * (1 - p) * (1 + k * (1 - p) / (2 - p) + k * p / (1 + p)) / (len(x) * len(y))
        inside = p[np.abs(p - found) <= 1.96 * np.sqrt(spread) + 1e-9]
        below, above = below + (found - inside[0]) ** 2, above + (inside[-1] - found) ** 2
    middle, count = improvement(ours, theirs), len(ours)
    return float(middle - np.sqrt(below) / count), float(middle + np.sqrt(above) / count)


def interpolate(values: np.ndarray, steps: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return curves `values [seeds, points]` over `steps [points]` at other steps, `[seeds, len(at)]`; NaN if all are NaN."""
    found = np.full((len(values), len(at)), np.nan)
    for i, seen in enumerate(~np.isnan(values)):
        if seen.any():
            found[i] = np.interp(at, steps[seen], values[i, seen])
    return found
