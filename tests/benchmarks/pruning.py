"""Simulated studies that chose the rule for stopping trials after a rung (`purerl.studies.rungs.going_on`).

python -m tests.benchmarks.pruning

A study has 16 trials, whose true scores are normal. After a rung the mean over seeds is known, with a noise that differs from
trial to trial. The output for each rule, over all numbers of seeds, levels of noise and numbers of rungs, is: how often the best
trial is completed, by how much the chosen trial is worse than the best, the steps spent, and how many more of the noisy half of
trials than of the quiet half go on after a rung if all are equally good.

A rule that keeps more trials completes the best more often, and costs more. So a rule with an allowance for noise is compared
with the quantile of the same cost: the allowance chooses no better trials.
"""

import itertools

import numpy as np

from purerl.studies.rungs import going_on

TRIALS, STUDIES = 16, 300
SEEDS, NOISE, SPREAD, RUNGS = (2, 4, 8), (0.5, 1.0, 2.0), (0.0, 0.7), (2, 3, 4)
RHO = 0.8  # the correlation of true scores from one rung to the next


def shipped(means, errors):
    return going_on(means, np.zeros(len(means)))


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
    """Simulate a study. Return 1 if the best trial was completed, the regret, and the steps in units of all trials' training."""
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
    """Return the means over seeds and their standard errors, of true scores with noise."""
    scores = true[..., None] + noise[:, None] * rng.normal(size=(*true.shape, seeds))
    return scores.mean(-1), scores.std(-1, ddof=1) / np.sqrt(seeds)


def favour(rule, rng, seeds, noise, *_):
    """Return by how much more of the noisy half of equally good trials than of the quiet half goes on."""
    quiet = np.arange(TRIALS) % 2 == 0
    kept = rule(*measured(rng, np.zeros(TRIALS), np.where(quiet, noise / 2, noise * 2), seeds))
    return kept[~quiet].mean() - kept[quiet].mean()


def compared(rule, studies=STUDIES):
    """Return the means of `study` and `favour` over all circumstances, the same for every rule."""
    rng, rows = np.random.default_rng(0), []
    for case in itertools.product(SEEDS, NOISE, SPREAD, RUNGS):
        rows += [(*study(rule, rng_of, *case), favour(rule, rng_of, *case)) for rng_of in rng.spawn(studies)]
    return np.mean(rows, axis=0)


if __name__ == "__main__":
    print("best completed, regret, steps, more of the noisy half")
    for name, rule in RULES.items():
        print("{:.3f}  {:.3f}  {:.3f}  {:+.3f}".format(*compared(rule)), name)
