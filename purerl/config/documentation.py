"""Documentation of config fields by group, parsed from the docstrings of a class and its bases."""

import dataclasses
import functools
import re
import textwrap
from typing import Any, NamedTuple

import numpy as np

from purerl.config.rules import AUTO


class FieldDoc(NamedTuple):
    """The help text of a field, and the group under which the field is listed."""

    group: str
    text: str


GROUPS = (
    "Environment",
    "Rollout",
    "Optimisation",
    "Policy loss",
    "Value",
    "Statistics",
    "Network",
    "Memory",
    "Curiosity",
    "Run",
)


def parse_docs(doc: str) -> tuple[str, dict[str, FieldDoc]]:
    """Return the text of a docstring above its groups, and a dict from field to documentation."""
    summary, *sections = re.split(rf"^({'|'.join(GROUPS)}):$", doc, flags=re.MULTILINE)
    docs = {}
    for group, entries in zip(sections[::2], sections[1::2], strict=True):
        for name, text in re.findall(r"^    (\w+): (.*(?:\n      .*)*)", entries, flags=re.MULTILINE):
            docs[name] = FieldDoc(group, " ".join(text.split()))
    return summary.rstrip(), docs


def describe_groups(cls: type) -> list[str]:
    """Return the text of each group of a config's fields, with the name, default and meaning of each field."""
    defaults = {f.name: as_written(f, default_of(f)) for f in dataclasses.fields(cls)}
    sections = []
    for group in GROUPS:
        filled = [_wrap(name, repr(defaults[name]), doc.text) for name, doc in cls.field_docs.items() if doc.group == group]
        sections += ["\n".join([f"{group}:", *filled])] if filled else []
    return sections


@functools.cache  # classes share most of their fields, and wrapping text is slow
def _wrap(name: str, default: str, text: str) -> str:
    return textwrap.fill(f"- `{name}` (`{default}`): {text}", 120, initial_indent="    ", subsequent_indent="      ")


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a field."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def as_written(field: dataclasses.Field, value: Any) -> Any:
    """Return a field's value as users write it: "auto" in place of `AUTO`. For a list, convert each value."""
    if isinstance(value, list):
        return [as_written(field, x) for x in value]
    is_auto = field.metadata["rule"].auto and isinstance(value, int | float | np.number) and value == AUTO
    return "auto" if is_auto else value
