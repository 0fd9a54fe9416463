"""Results of benchmarks in JSON files of this folder. Benchmarks write them only with `--record`, on a clean commit."""

import argparse
import json
import os
import pathlib
import subprocess
import time

import jax
import jaxlib

import purerl
from purerl.runs.compile_cache import kind_of_processor
from purerl.runs.storage.files import atomic_write
from tests.benchmarks import tables

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent


def parser(doc):
    """Return an argument parser with the help text `doc` and the flag `--record`."""
    return with_record(argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter))


def with_record(parser):
    """Add the flag `--record` to a parser, and return the parser."""
    says = "save the results, and rewrite the tables"
    parser.add_argument("--record", action=_OnCleanCommit, nargs=0, default=False, help=says)
    return parser


class _OnCleanCommit(argparse.Action):
    def __call__(self, parser, namespace, *_):
        if commit().endswith("-dirty"):
            parser.error("commit the code first: results are saved with the commit that made them")
        namespace.record = True


def load(file):
    """Return the content of a JSON file of this folder; an empty dict if the file is missing."""
    path = HERE / file
    return json.loads(path.read_text()) if path.exists() else {}


def in_order(rows, names):
    """Return the rows whose names are in `names`, in this order."""
    return {name: rows[name] for name in names if name in rows}


def write(file, kept, order=None):
    """Save all rows sorted by name, or the rows that `order` names in this order, and rewrite the tables."""
    text = json.dumps(in_order(kept, sorted(kept) if order is None else order), indent=1) + "\n"
    atomic_write(HERE / file, text.encode())
    tables.render()


def add(file, name, row, order=None):
    """Save a row under a name, in place of an older row of this name."""
    write(file, load(file) | {name: row}, order)


def add_long(name, seconds):
    """Save the date, the commit and the minutes of a long test that passed."""
    add("long.json", name, {"passed": time.strftime("%Y-%m-%d"), "commit": commit(), "minutes": round(seconds / 60, 1)})


def commit():
    """Return the current commit, marked "-dirty" if `purerl/` or a Python file of `tests/` has changed since."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return git("describe", "--always") + ("-dirty" if git("status", "--porcelain", "--", "purerl", "tests/*.py") else "")


def circumstances(command):
    """Return the command that makes a row, the commit, the versions, the number of cores, and the platform."""
    return {
        "command": f"python -m tests.benchmarks.{command} --record",
        "commit": commit(),
        "versions": {"purerl": purerl.__version__, "jax": jax.__version__},
        "cores": cores(),
        "platform": platform(),
    }


def platform():
    """Return the platform that the bits of a run depend on: the compiler, the processor, and the cores that share the work."""
    return f"jaxlib {jaxlib.__version__}, processor {kind_of_processor()}, {cores()} cores"


def cores():
    return len(os.sched_getaffinity(0))
