"""Evaluations during a run: their table, the best state, and drawings. They move no bit of training."""

import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

COLUMNS = ("episode_return", "episode_length", "finished")


class Evaluations:
    """The table of evaluations, in memory and in a file that is cut back to where a run goes on.

    Args:
        evaluate: `(state) -> {column: [runs]}`.
        path: of the file; None for memory alone.
        updates: where the run goes on; later rows are dropped.
    """

    def __init__(self, evaluate: Callable[[Any], dict[str, np.ndarray]], path: pathlib.Path | None, updates: int):
        self._evaluate, self._path, self._rows = evaluate, path, []
        if path is not None and path.exists():
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            self._rows = [row for row in rows if row["update"] <= updates]
        if path is not None:
            beside = path.with_name(path.name + ".new")
            beside.write_text("".join(json.dumps(row) + "\n" for row in self._rows))
            os.replace(beside, path)

    def add(self, updates: int, state: Any) -> bool:
        """Evaluates a state, and says whether its mean return over all runs is the best so far."""
        best = max((_score(row) for row in self._rows), default=-math.inf)
        row = {"update": updates} | {name: x.tolist() for name, x in self._evaluate(state).items()}
        self._rows.append(row)
        if self._path is not None:
            with open(self._path, "a") as file:
                file.write(json.dumps(row) + "\n")
        return _score(row) > best

    def table(self) -> dict[str, np.ndarray]:
        """`update [n]` and the columns `[n, runs]`."""
        columns = {name: np.array([row[name] for row in self._rows], np.float32) for name in COLUMNS}
        return {"update": np.array([row["update"] for row in self._rows], np.int64), **columns}


def _score(row: dict[str, Any]) -> float:
    return float(np.mean(row["episode_return"]))
