"""Files and directories without permission to read: every reader of a run's directory reports them without a traceback."""

import contextlib
import os
import pathlib
import shutil
import tempfile

import pytest

import purerl
from purerl.cli import main
from purerl.config.presets import presets
from tests.helpers.tiny import SIZES

CFG = purerl.PPOConfig(**{**SIZES, "total_timesteps": 512})


@contextlib.contextmanager
def unreadable(path: pathlib.Path):
    """Make a path readable by a superuser only, and act as another user meanwhile."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.fixture(scope="module")
def directory():
    root = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))  # only its owner may enter pytest's own folder
    root.chmod(0o777)
    purerl.fit(CFG, 0, root / "run", save_every=2, eval_every=2, eval_episodes=2)
    presets()  # imports a part of Python that another user may not be allowed to read
    for path in [root / "run", *(root / "run").rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    yield root / "run"
    shutil.rmtree(root)


READERS = {
    "load": lambda path: purerl.load(path),
    "load best": lambda path: purerl.load(path, best=True),
    "resume": lambda path: purerl.fit(CFG, 0, path, save_every=2, eval_every=2, eval_episodes=2),
    "eval": lambda path: main(["eval", str(path), "--num-episodes", "1"]),
    "plot": lambda path: main(["plot", str(path), "--out", str(path.parent / "curves.png")]),
    "init_from": lambda path: purerl.fit(CFG, 0, init_from=path),
}


@pytest.mark.slow
@pytest.mark.each_landing("load best")
@pytest.mark.filterwarnings("ignore")  # warnings of the skipped checkpoint and of the unwritable cache
@pytest.mark.parametrize("name", [pytest.param(x, marks=[] if x in ("load", "plot") else pytest.mark.slow) for x in READERS])
def test_unreadable_paths_are_named(directory, capsys, name):
    entries = [directory, *(path for path in directory.rglob("*") if len(path.relative_to(directory).parts) < 3)]
    if name in ("eval", "init_from", "resume"):  # without an unreadable file these commands compile and train
        entries = [path for path in entries if path.name in ("run", "checkpoints", "8", "curves.jsonl", "evaluations.jsonl")]
    refused = []
    for path in sorted(entries):
        with unreadable(path):
            try:
                status = READERS[name](directory)
            except (purerl.ConfigError, purerl.CheckpointError) as error:
                status, said = 1, str(error)
            else:
                said = capsys.readouterr().err
        if status in (1, 2):
            refused.append(path)
            assert "Traceback" not in said
            assert "Permission denied" in said or "cannot be read" in said, said
    assert refused
