"""Exported policies."""

import pytest

import purerl
from purerl.runs.analysis.export import export


@pytest.mark.parametrize("name", ["policy.onnx", "policy.PT", "policy.tflite"])
def test_export_refuses_file_names_of_other_formats(name, tmp_path):
    with pytest.raises(purerl.ConfigError, match=r"jax.export does not write \.\w+ files; use the suffix .jaxexport"):
        export(None, None, tmp_path / name)
    assert not list(tmp_path.iterdir())
