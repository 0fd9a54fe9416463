"""Documentation of fields."""

import dataclasses

import pytest

from purerl.config.algorithms import ALGORITHMS
from purerl.config.documentation import as_written


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_field_is_documented_with_its_default(name):
    """The docstring of the class lists every field."""
    cls = ALGORITHMS[name]
    assert cls.field_docs.keys() == {f.name for f in dataclasses.fields(cls)}
    for field in dataclasses.fields(cls):
        assert f"    - `{field.name}` (`{as_written(field, getattr(cls(), field.name))!r}`): " in cls.__doc__
        assert cls.field_docs[field.name].text
