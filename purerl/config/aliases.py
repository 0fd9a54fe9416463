"""Names of settings in other libraries, called systems (`names.csv`), for error messages and the migration tables."""

import csv
import functools
import importlib.resources
from collections.abc import Collection
from typing import Any

from purerl.core.errors import Problem, nearest


@functools.cache
def rows() -> tuple[dict[str, str], ...]:
    """Return the rows of the table: `system`, `name` in this system, `purerl` (the name in purerl, "" if none), `note`."""
    text = importlib.resources.files("purerl.config").joinpath("names.csv").read_text()
    return tuple(csv.DictReader(text.splitlines()))


def unknown_names(given: dict[str, Any], known: Collection[str], what: str, otherwise: str) -> list[Problem]:
    """Return a problem for each unknown name, and for each known name that means something else in the likely system.

    Args:
        given: all names that were given together, with their values. The names identify the system that they are likely from;
          hints leave out all other systems.
        known: the valid names.
        what: the noun for a name: "field", "flag".
        otherwise: the hint for a name that no system has and that resembles no valid name.
    """
    unknown = [name for name in given if name not in known]
    systems = _likely_systems(list(given), unknown) if unknown else set()
    hint = lambda name: rename_hint(name, systems) or nearest(name.lower(), known, otherwise)
    found = [Problem(name, given[name], f"no such {what}; {hint(name)}") for name in unknown]
    if len(systems) == 1:
        there = {row["name"]: row for row in rows() if row["system"] in systems and _is_setting(row["purerl"])}
        other = [there[name] for name in given if name in known and name in there]
        for row in other:
            if (here := row["purerl"].removeprefix("cfg.")) != (name := row["name"]):
                note = f" ({row['note']})" if row["note"] else ""
                found.append(Problem(name, given[name], f"is the name of another {what} in {row['system']}; use `{here}`{note}"))
    return found


def rename_hint(name: str, systems: Collection[str] = ()) -> str:
    """Return a hint for a name from another system, ignoring case. If no system has the name, return "".

    Args:
        name: a field, an argument or a flag, with underscores.
        systems: if one of these systems has the name, the hint leaves out all other systems.
    """
    found = [row for row in rows() if row["name"].lower() == name.lower()]
    found = [row for row in found if row["system"] in systems] or found
    settings = [row for row in found if _is_setting(row["purerl"])]
    if not found:
        return ""
    if not settings:
        here = found[0]["purerl"]
        return (f"see {here}" if here else "purerl has no such field") + _notes([row for row in found if row["purerl"] == here])
    places: dict[str, list[dict[str, str]]] = {}
    for row in settings:
        places.setdefault(row["purerl"], []).append(row)
    hints = [f"`{here.removeprefix('cfg.')}`{_notes(own, len(places) > 1)}" for here, own in places.items()]
    return f"use {', or '.join(hints)}"


def _likely_systems(names: list[str], unknown: list[str]) -> set[str]:
    """Return the systems that have the most of the unknown names; of these, the systems that have the most of all names.

    If no system has any unknown name, return an empty set.
    """
    pairs = {(row["system"], row["name"].lower()) for row in rows()}
    has = lambda system, wanted: sum((system, name.lower()) in pairs for name in wanted)
    score = {system: (has(system, unknown), has(system, names)) for system, _ in pairs}
    best = max(score.values())
    return {system for system, count in score.items() if count == best} if best[0] else set()


def _notes(found: list[dict[str, str]], always: bool = False) -> str:
    """Return the notes of rows, each with its system. If `always` is set, name the systems of rows without a note too."""
    notes = [row["system"] + (f": {row['note']}" if row["note"] else "") for row in found if row["note"] or always]
    return f" ({'; '.join(notes[:4])})" if notes else ""


def _is_setting(place: str) -> bool:
    return place.startswith("cfg.") or place.endswith("=)") or "Config." in place
