"""What other systems call the things of purerl (`names.csv`), for error messages and the tables of migration."""

import csv
import functools
import importlib.resources


@functools.cache
def rows() -> tuple[dict[str, str], ...]:
    """The table: `system`, `name` there, `purerl` (where it is here; "" for nowhere), `note`."""
    text = importlib.resources.files("purerl.config").joinpath("names.csv").read_text()
    return tuple(csv.DictReader(text.splitlines()))


def renamed(name: str) -> str:
    """A hint for a setting that another system has under this name, in any case of letters; "" for a name that none has."""
    for row in rows():
        if row["name"].lower() == name.lower() and (here := _setting(row["purerl"])):
            return f"it is `{here}` here" + (f" ({row['note']})" if row["note"] else "")
    return ""


def _setting(place: str) -> str:
    """A place of the table as a setting is written; "" for one that is no setting."""
    name = place.removeprefix("cfg.")
    return name if place.startswith("cfg.") or place.endswith("=)") or "Config." in place else ""
