"""Results of `purerl.check_env` for three environments of each suite, with the date and the suite's version.

    pip install '.[suites]' && python -m tests.benchmarks.suites --record          # ids whose suite is installed; takes minutes
    python -m tests.benchmarks.suites --only navix --record

Ids whose suite is not installed keep their rows in `suites.json`. `suites.md` has the table.
"""

import importlib.metadata
import sys
import time

import jax

import purerl
from purerl.envs.suites import SUITES
from tests.benchmarks import recording
from tests.helpers.suites import IDS


def version(env_id):
    """Return the name and the version of an id's suite; None if the suite is not installed."""
    package = SUITES[env_id.partition("/")[0]]
    found = importlib.metadata.packages_distributions().get(package)
    return f"{found[0]} {importlib.metadata.version(found[0])}" if found else None


def row_of(env_id):
    env_kwargs, num_steps = IDS[env_id]
    start = time.perf_counter()
    report = purerl.check_env(env_id, env_kwargs=env_kwargs, num_envs=8, num_steps=num_steps)
    seconds = round(time.perf_counter() - start, 1)
    row = {"suite": version(env_id), "problems": list(report.problems), "seconds": seconds, "passed": time.strftime("%Y-%m-%d")}
    return row | recording.circumstances(f"suites --only {env_id}")


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("--only", default="", help="check only ids that contain this text")
    args = parser.parse_args()
    for env_id in IDS:
        if args.only in env_id and version(env_id):
            row = row_of(env_id)
            print(env_id, row["seconds"], "s", row["problems"], flush=True)
            if args.record:
                recording.add("suites.json", env_id, row)
            jax.clear_caches()


if __name__ == "__main__":
    sys.exit(main())
