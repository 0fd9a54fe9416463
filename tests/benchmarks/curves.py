"""The picture of the README: learning curves of seeds 0 - 7, kept in `curves.json`, drawn as `curves.png`.

python -m tests.benchmarks.curves train [ENV ...] --record     minutes
python -m tests.benchmarks.curves draw                         the picture alone
"""

import json
import pathlib
import sys

import jax
import numpy as np

import purerl
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks import recording
from tests.benchmarks.references import REFERENCES
from tests.benchmarks.results import SEEDS, config

HERE = pathlib.Path(__file__).parent
NAMES = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Breakout-MinAtar")
POINTS = 60


def train(name):
    """The returns of the training episodes of each seed: means over 60 equal parts of the run, null where no episode ended."""
    purerl.use_cores()
    cfg = config(name)
    run = lambda key: purerl.make_train(cfg)(key).metrics["episode_return"]
    keys = jax.numpy.stack([jax.random.key(seed) for seed in SEEDS])
    total, count = (np.asarray(x) for x in jax.tree.leaves(jax.jit(purerl.over_devices(run))(keys)))
    part = lambda x: np.stack([rows.sum(1) for rows in np.array_split(x, POINTS, axis=1)], axis=1)
    with np.errstate(invalid="ignore"):
        means = part(total) / part(count)
    values = [[None if np.isnan(x) else round(float(x), 3) for x in row] for row in means]
    return {"config": json.loads(cfg.to_json()), "values": values} | recording.circumstances(f"curves train {name}")


def draw(kept):
    """A panel for each environment: the interquartile mean over seeds, its 95 % interval, and what gymnax publishes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(NAMES)), NAMES, strict=True):
        values = np.array(kept[name]["values"], float)
        steps = np.linspace(0, kept[name]["config"]["total_timesteps"], POINTS + 1)[1:] / 1e6
        seen = ~np.isnan(values).any(0)
        axes.plot(steps[seen], iqm(values[:, seen]))
        axes.fill_between(steps[seen], *interval(values[:, seen], resamples=1000), alpha=0.25, lw=0)
        axes.axhline(REFERENCES[name].published, color="gray", ls=":", lw=1)
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("million steps", fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(HERE / "curves.png", dpi=110)


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("what", choices=("train", "draw"))
    parser.add_argument("names", nargs="*", default=NAMES, metavar="ENV")
    args = parser.parse_args()
    for name in args.names if args.what == "train" else ():
        row = train(name)
        print(name, "IQM of the last part:", iqm(np.array(row["values"], float)[:, -1]), flush=True)
        if args.record:
            recording.add("curves.json", name, row, NAMES)
    if args.what == "draw" or args.record:
        draw(recording.load("curves.json"))


if __name__ == "__main__":
    sys.exit(main())
