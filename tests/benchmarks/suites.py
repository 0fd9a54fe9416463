"""Results of `purerl.check_env` for environments of the suites, with the date and the suite's version.

    pip install '.[suites]' && python -m tests.benchmarks.suites --record          # ids whose suite is installed; takes minutes
    python -m tests.benchmarks.suites --only navix --record
    python -m tests.benchmarks.suites --every --record                             # takes hours; continues where it ended

The first two check three environments of each suite past their time limits, and save rows in `suites.json`. The last checks 64
steps of every environment, and saves rows in `environments.json`; it skips environments that have a row for the installed
version. Ids whose suite is not installed keep their rows. `suites.md` has the tables.
"""

import importlib.metadata
import re
import sys
import time

import jax

import purerl
from purerl.envs.suites import IDS as PATTERNS
from purerl.envs.suites import SUITES
from tests.benchmarks import recording
from tests.helpers.suites import IDS


def version(env_id):
    """Return the name and the version of an id's suite; None if the suite is not installed."""
    package = SUITES[env_id.partition("/")[0]]
    found = importlib.metadata.packages_distributions().get(package)
    return f"{found[0]} {importlib.metadata.version(found[0])}" if found else None


def checked(env_id, env_kwargs, **size):
    """Check an environment; multi-player games are played against random opponents."""
    start, name = time.perf_counter(), env_id.removeprefix("pgx/")
    env = purerl.versus(name) if env_id.startswith("pgx/") and not re.fullmatch(PATTERNS["pgx"], name) else env_id
    report = purerl.check_env(env, env_kwargs=env_kwargs, **size)
    seconds = round(time.perf_counter() - start, 1)
    return {"suite": version(env_id), "problems": list(report.problems), "seconds": seconds, "passed": time.strftime("%Y-%m-%d")}


def row_of(env_id):
    env_kwargs, num_steps = IDS[env_id]
    return checked(env_id, env_kwargs, num_envs=8, num_steps=num_steps) | recording.circumstances(f"suites --only {env_id}")


def row_of_any(env_id):
    return checked(env_id, (), num_envs=4, num_steps=64) | {"commit": recording.commit()}


def all_ids(prefix):
    """Return the ids of all environments that an installed suite registers, except gymnasium's."""
    suite = importlib.import_module("xminigrid.registration" if prefix == "xminigrid" else SUITES[prefix])
    names = {
        "brax": lambda: importlib.import_module("brax.envs")._envs,
        "craftax": lambda: importlib.import_module("purerl.envs.suites.craftax").NAMES,
        "jumanji": lambda: suite.registered_environments(),
        "navix": lambda: suite.registry(),
        "pgx": lambda: suite.available_envs(),
        "playground": lambda: suite.registry.ALL_ENVS,
        "xminigrid": lambda: suite.registered_environments(),
    }
    return [f"{prefix}/{name}" for name in sorted(names[prefix]())]


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("--only", default="", help="check only ids that contain this text")
    parser.add_argument("--every", action="store_true", help="check every environment of the installed suites")
    args = parser.parse_args()
    file, check, ids = ("environments.json", row_of_any, ()) if args.every else ("suites.json", row_of, IDS)
    if args.every:
        known = {env_id: row["suite"] for env_id, row in recording.load(file).items()}
        suites = [name for name in SUITES if name != "gymnasium" and version(name)]
        ids = [env_id for name in suites for env_id in all_ids(name) if known.get(env_id) != version(name)]
    for env_id in ids:
        if args.only in env_id and version(env_id):
            row = check(env_id)
            print(env_id, row["seconds"], "s", row["problems"], flush=True)
            if args.record:
                recording.add(file, env_id, row)
            jax.clear_caches()


if __name__ == "__main__":
    sys.exit(main())
