"""Names of settings in other systems (`names.csv`), for error messages and the migration tables."""

import csv
import functools
import importlib.resources
from collections.abc import Collection
from typing import Any

from purerl.core.errors import Problem, nearest


@functools.cache
def rows() -> tuple[dict[str, str], ...]:
    """Return the table: `system`, `name` in that system, `purerl` (the name in purerl; "" if there is none), `note`."""
    text = importlib.resources.files("purerl.config").joinpath("names.csv").read_text()
    return tuple(csv.DictReader(text.splitlines()))


def unknown_names(given: dict[str, Any], known: Collection[str], what: str, otherwise: str) -> list[Problem]:
    """Return a problem for each unknown name, and for each known name that means something else in the likely system.

    Args:
        given: all names that were given together, with their values. The unknown names identify the likely system; hints then
          leave out all other systems.
        known: the valid names.
        what: the noun for a name: "field", "flag".
        otherwise: the hint for a name that no system has and that resembles no valid name.
    """
    unknown = [name for name in given if name not in known]
    systems = _likely_systems(list(given), unknown)
    hint = lambda name: renamed(name, systems) or nearest(name.lower(), known, otherwise)
    found = [Problem(name, given[name], f"no such {what}; {hint(name)}") for name in unknown]
    if len(systems) == 1:
        there = {row["name"]: row for row in rows() if row["system"] in systems and _is_setting(row["purerl"])}
        other = [there[name] for name in given if name in known and name in there and _field(there[name]["purerl"]) != name]
        text = "is the name of another {} in {}; use `{}`{}"
        hints = {row["name"]: text.format(what, row["system"], _field(row["purerl"]), _note(row)) for row in other}
        found += [Problem(name, given[name], hint) for name, hint in hints.items()]
    return found


def renamed(name: str, systems: Collection[str] = ()) -> str:
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
    places = list(dict.fromkeys(row["purerl"] for row in settings))
    notes = [_notes([row for row in settings if row["purerl"] == here], len(places) > 1) for here in places]
    if len(places) == 1:
        return f"use `{_field(places[0])}`{notes[0]}"
    return f"use {', or '.join(f'`{_field(here)}`{note}' for here, note in zip(places, notes, strict=True))}"


def _likely_systems(names: list[str], unknown: list[str]) -> set[str]:
    """Return the systems that have the most of the unknown names; of these, the systems that have the most of all names.

    If no system has any unknown name, return an empty set.
    """
    has = lambda system, wanted: sum((system, name.lower()) in _pairs() for name in wanted)
    score = {system: (has(system, unknown), has(system, names)) for system in {row["system"] for row in rows()}}
    best = max(score.values())
    return {system for system, count in score.items() if count == best} if best[0] else set()


@functools.cache
def _pairs() -> frozenset[tuple[str, str]]:
    return frozenset((row["system"], row["name"].lower()) for row in rows())


def _field(place: str) -> str:
    return place.removeprefix("cfg.")


def _notes(found: list[dict[str, str]], always: bool = False) -> str:
    """Return the notes of these rows. If `always`, name the system of a row even if it has no note."""
    notes = [row["system"] + (f": {row['note']}" if row["note"] else "") for row in found if row["note"] or always]
    return f" ({'; '.join(notes[:4])})" if notes else ""


def _note(row: dict[str, str]) -> str:
    return f" ({row['note']})" if row["note"] else ""


def _is_setting(place: str) -> bool:
    return place.startswith("cfg.") or place.endswith("=)") or "Config." in place
