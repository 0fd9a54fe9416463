"""External (Python) environments in checkpoints: their state is not part of the training state."""

import json
import warnings

import jax
import numpy as np

from purerl.core.types import TrainState
from purerl.envs.host import Ticket, restore, snapshot
from purerl.runs.storage.checkpoint import Checkpoint
from purerl.runs.trainer import Trainer


def saved(state: TrainState) -> dict[str, np.ndarray]:
    """Return a snapshot of each run's environments, as bytes `[size]`, by index of the run as text."""
    texts = (json.dumps(snapshot(ticket)).encode() for ticket in _tickets(state))
    return {str(i): np.frombuffer(text, np.uint8) for i, text in enumerate(texts)}


def restored(runs: Trainer, state: TrainState, fresh: TrainState, saved: Checkpoint) -> TrainState:
    """Return a checkpoint's state with its environments restored; if that is impossible, warn and restart the environments.

    Args:
        runs: the runs that resume.
        state: the checkpoint's state.
        fresh: a new initial state of these runs, whose environments are restored and used.
        saved: the checkpoint.
    """
    snapshots = [json.loads(saved.arrays[f"['environments']['{i}']"].tobytes()) for i in range(len(runs.labels))]
    if missing := sorted({x["missing"] for x in snapshots if "missing" in x}):
        warnings.warn(f"the resumed run is not bit-identical: environments restart, since {'; '.join(missing)}", stacklevel=3)
        return state.replace(actor=runs.init(saved.updates).actor)
    for ticket, kept in zip(_tickets(fresh), snapshots, strict=True):
        restore(ticket, kept)
    return state.replace(actor=state.actor.replace(env_state=fresh.actor.env_state))


def _tickets(state: TrainState) -> list[Ticket]:
    """Return the environment handle of each run."""
    ticket = jax.device_get(state.actor.env_state)
    return [Ticket(*row) for row in zip(np.atleast_2d(ticket.number), np.atleast_2d(ticket.steps), strict=True)]
