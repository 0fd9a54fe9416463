"""The live line in a terminal, plain lines elsewhere, and the final table."""

import io
import types

import numpy as np
import pytest
from rich.console import Console

from purerl.runs.fit import fit
from purerl.runs.logging.console import LiveLine, closing_table
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG


@pytest.mark.slow
def test_live_line_is_redrawn_in_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    fit(CFG, env=Varied(), chunk_seconds=1e-9, recorders=(LiveLine(console),))
    text = console.file.getvalue()
    assert "256 steps" in text
    assert "0:00 left" in text
    assert "\x1b[2K" in text  # the line is erased and written again


def test_plain_lines_are_printed_outside_a_terminal():
    console = Console(file=io.StringIO(), width=120)
    line = LiveLine(console, plain_seconds=0)
    result = fit(CFG, env=Varied(), chunk_seconds=1e-9, recorders=(line,))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "\x1b" not in console.file.getvalue()
    assert "return" in lines[-1]
    table = closing_table(result.progress, result.metrics)
    assert str(table.title).startswith("256 steps in")
    again = result.progress._replace(began=(result.progress.updates, result.progress.seconds))
    assert "steps/s" not in closing_table(again, result.metrics).title  # nothing was trained here
    assert [column.header for column in table.columns] == ["run", "episodes", "return", "length", "entropy"]


def test_mean_return_without_finished_episodes_is_nan():
    from purerl.core.metrics import Mean
    from purerl.runs.logging.console import overall

    assert np.isnan(overall(Mean(np.zeros(3), np.zeros(3, int))))
    assert overall(Mean(np.array([4.0, 6.0]), np.array([1, 3]))) == 2.5


@pytest.mark.slow
def test_fit_shows_progress_by_default_only_in_a_terminal(monkeypatch, capsys):
    fit(CFG, env=Varied())
    assert not capsys.readouterr().out
    fit(CFG, env=Varied(), chunk_seconds=1e-9, progress=True)
    with_terminal = LiveLine(Console(file=io.StringIO(), force_terminal=True, width=120))
    monkeypatch.setattr("purerl.runs.fit.LiveLine", lambda: with_terminal)
    fit(CFG, env=Varied(), progress=False)
    assert not with_terminal.console.file.getvalue()
    fit(CFG, env=Varied())
    assert "256 steps" in with_terminal.console.file.getvalue()


@pytest.mark.slow
def test_live_line_updates_one_output_of_a_notebook_cell(monkeypatch):
    shown = []
    cell = types.SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    monkeypatch.setattr("IPython.display.display", lambda data, raw, display_id: shown.append(data["text/plain"]) or cell)
    console = Console(file=io.StringIO(), force_jupyter=True)
    fit(CFG, env=Varied(), chunk_seconds=1e-9, recorders=(LiveLine(console),))
    assert shown[0] == "compiling"
    assert len(shown) == 1 + 4
    assert "256 steps" in shown[-1]
