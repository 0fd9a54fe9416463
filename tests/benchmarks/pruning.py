"""Simulated studies that chose the rule for stopping trials after a rung (`purerl.studies.rungs.is_kept`).

python -m tests.benchmarks.pruning

A study has 16 trials, whose true scores are normally distributed. After a rung, the mean of noisy scores over seeds is known; the
noise differs between trials. The script prints four means for each rule, over all numbers of seeds and rungs and levels of noise:
the share of studies that complete the best trial; the difference between the scores of the best and of the chosen trial (regret);
the steps spent; and the share of noisy trials minus the share of quiet trials that go on after a rung, if all are equally good.

A rule that keeps more trials completes the best trial more often, and costs more steps. So a rule that allows for noise is
compared with the quantile rule of the same cost. The rule that allows for noise does not choose better trials.
"""

import itertools

import numpy as np

from purerl.studies.rungs import is_kept

TRIALS, STUDIES = 16, 300
SEEDS, NOISE, SPREAD, RUNGS = (2, 4, 8), (0.5, 1.0, 2.0), (0.0, 0.7), (2, 3, 4)
RHO = 0.8  # the correlation of true scores from one rung to the next


def shipped(means, errors):
    return np.array([is_kept(x, means) for x in means])


def both_optimistic(means, errors):
    return shipped(means + errors, errors)


def optimistic(share):
    return lambda means, errors: means + share * errors >= np.median(means)


def quantile(share):
    return lambda means, errors: means >= np.quantile(means, share)


RULES = {
    "mean, against the median of means": shipped,
    "mean + standard error, against the median of the same": both_optimistic,
    "mean + 1/2 standard error, against the median of means": optimistic(0.5),
    "mean + standard error, against the median of means": optimistic(1.0),
    "mean, against the 40 % quantile of means": quantile(0.4),
    "mean, against the 30 % quantile of means": quantile(0.3),
}


def study(rule, rng, seeds, noise, spread, rungs):
    """Simulate a study. Return True if the best trial was completed, the regret, and the share of all steps spent."""
    true = np.empty((rungs, TRIALS))
    true[-1] = rng.normal(size=TRIALS)
    for rung in reversed(range(rungs - 1)):
        true[rung] = RHO * true[rung + 1] + np.sqrt(1 - RHO**2) * rng.normal(size=TRIALS)
    means, errors = measured(rng, true, noise * np.exp(spread * rng.normal(size=TRIALS)), seeds)
    left, steps = np.arange(TRIALS), 0.0
    for rung in range(rungs):
        steps += len(left) * 2.0 ** max(rung - 1, 0) / 2 ** (rungs - 1)
        if rung < rungs - 1:
            left = left[rule(means[rung, left], errors[rung, left])]
    best, chosen = true[-1].argmax(), left[means[-1, left].argmax()]
    return best in left, true[-1, best] - true[-1, chosen], steps / TRIALS


def measured(rng, true, noise, seeds):
    """Add noise to true scores; return the means over seeds and their standard errors."""
    scores = true[..., None] + noise[:, None] * rng.normal(size=(*true.shape, seeds))
    return scores.mean(-1), scores.std(-1, ddof=1) / np.sqrt(seeds)


def favour(rule, rng, seeds, noise, *_):
    """Return the share of noisy trials that go on minus the share of quiet trials, if all trials are equally good."""
    quiet = np.arange(TRIALS) % 2 == 0
    kept = rule(*measured(rng, np.zeros(TRIALS), np.where(quiet, noise / 2, noise * 2), seeds))
    return kept[~quiet].mean() - kept[quiet].mean()


def compared(rule, studies=STUDIES):
    """Return the means of `study` and `favour` over all cases. All rules get the same random numbers."""
    rng, rows = np.random.default_rng(0), []
    for case in itertools.product(SEEDS, NOISE, SPREAD, RUNGS):
        rows += [(*study(rule, rng_of, *case), favour(rule, rng_of, *case)) for rng_of in rng.spawn(studies)]
    return np.mean(rows, axis=0)


if __name__ == "__main__":
    print("best completed, regret, steps, more of the noisy half")
    for name, rule in RULES.items():
        print("{:.3f}  {:.3f}  {:.3f}  {:+.3f}".format(*compared(rule)), name)
