"""Chunks of updates as one compiled program."""

import jax
import numpy as np

import purerl
from purerl.runs.trainer import MAX_CHUNK, Trainer
from tests.helpers.interrupted import fitted
from tests.helpers.probes import Varied
from tests.helpers.studies import SHORT
from tests.helpers.tiny import CFG


def test_all_chunks_share_one_compiled_program():
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    compiled = []
    fitted(updates=40, chunk_seconds=1e-9, recorders=(lambda p: compiled.append(sum("backend_compile" in e for e in events)),))
    assert compiled[0] == compiled[-1]


def test_chunk_never_exceeds_its_buffer():
    lengths = []
    cfg = CFG.replace(num_steps=2, num_epochs=1, num_minibatches=1, total_timesteps=8 * (MAX_CHUNK * 2 + 100))
    result = purerl.fit(
        cfg, env=Varied(), chunk_seconds=1e9, recorders=(lambda p: lengths.append(p.metrics["lr"].total.shape[0]),)
    )
    assert max(lengths) == MAX_CHUNK
    assert sum(lengths) == result.progress.updates == 2 * MAX_CHUNK + 100


def test_only_swept_fields_are_arguments_of_the_program():
    """A disabled option has no cost in a sweep, either."""
    same = jax.vmap(lambda lr: SHORT.replace(lr=lr))(np.float32([1e-3, 1e-2]))  # with all leaves as arrays
    assert Trainer(same, 0, 1, False, {"env": Varied()}, 1).cfgs.keys() == {"lr"}
    made = SHORT.replace(lr=np.float32([1e-3, 1e-2]), gamma=np.float32([0.99, 0.99]))
    again = Trainer(made, 0, 2, False, {"env": Varied()}, 1)
    assert again.cfgs.keys() == {"lr", "gamma"}
    other = again.with_configs(made.replace(gamma=np.float32([0.5, 0.9])))
    assert other.cfgs["gamma"].tolist() == np.float32([0.5, 0.5, 0.9, 0.9]).tolist()
    assert again.cfgs["gamma"].tolist() == np.float32([0.99] * 4).tolist()
