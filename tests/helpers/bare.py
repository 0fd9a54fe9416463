"""Python with only the packages that `notebooks/reference.md` names for exported policies."""

import importlib.metadata
import pathlib
import re

REFERENCE = pathlib.Path(__file__).parent.parent.parent / "notebooks" / "reference.md"


def bare_python(fresh_python, code, folder):
    """Run code that can import only the packages named in the reference and their requirements; return its output."""
    (says,) = re.findall(r"purerl export .*# runs with only (.*); see", REFERENCE.read_text())
    site = folder / "site"
    site.mkdir()
    for name in required(*says.split(" and ")):
        files = importlib.metadata.distribution(name).files
        home = files[0].locate().parents[len(files[0].parts) - 1]
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(home / top)
    only = f"""
import sys
sys.path = [path for path in sys.path if "site-packages" not in path and path] + [{str(site)!r}]
for name in ("purerl", "flax", "optax", "gymnax"):
    try:
        __import__(name)
        raise SystemExit(name + " can be imported")
    except ImportError:
        pass
"""
    return fresh_python(only + code, cwd=folder, flags=("-S",), PYTHONPATH="")


def required(*names):
    """Return the names of distributions and of all their requirements, without extras."""
    found, todo = set(), [name.lower() for name in names]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            wanted = [line for line in importlib.metadata.requires(name) or [] if "extra ==" not in line]
            todo += [re.match(r"[\w-]+", line)[0].lower() for line in wanted]
    return found
