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
    """A hint for a name of another system, in any case of letters; "" for a name that none has."""
    found = [row for row in rows() if row["name"].lower() == name.lower()]
    settings = [row for row in found if _is_setting(row["purerl"])]
    if not found:
        return ""
    here = (settings or found)[0]["purerl"]
    notes = [f"{row['system']}: {row['note']}" for row in found if row["note"] and row["purerl"] == here]
    where = f"it is `{here.removeprefix('cfg.')}` here" if settings else f"see {here}" if here else "no setting here"
    return where + (f" ({'; '.join(notes[:4])})" if notes else "")


def _is_setting(place: str) -> bool:
    return place.startswith("cfg.") or place.endswith("=)") or "Config." in place
