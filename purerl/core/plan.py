"""The size of a run, computed before compilation."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from purerl.core.types import PyTree


class PhasePlan(NamedTuple):
    """The schedule of one phase over a whole run.

    Attributes:
        name: name of the phase.
        runs: number of updates that run the phase.
        gradient_steps: gradient steps of the phase in all updates.
        left_over: updates after the last run of the phase.
    """

    name: str
    runs: int
    gradient_steps: int
    left_over: int


HOST = """external (Python) environments, stepped outside of JAX:
  runs train one after the other, without jax.vmap
  the program calls Python in each step, and each process compiles the program again
  an update accepts only the newest state, and the environments cannot be exported"""


def num_bytes(tree: PyTree) -> int:
    """Return the size of all arrays of a tree, in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def needed_bytes(compiled: Any) -> int:
    """Return the memory that a compiled program needs on each device, in bytes: arguments, results and temporaries."""
    needed = compiled.memory_analysis()
    bytes_of = needed.argument_size_in_bytes + needed.output_size_in_bytes - needed.alias_size_in_bytes
    return bytes_of + needed.temp_size_in_bytes


TABLE = ("devices", "num_updates", "env_steps", "extra_steps", "batch_size", "minibatch_size", "gradient_steps", "parameters")
TABLE += ("rollout_bytes", "state_bytes", "kept_bytes")  # its rows


@dataclass(frozen=True)
class Plan:
    """The size of a run. The plan prints as a table without `update_bytes`, which needs a compilation.

    Attributes:
        devices: number of devices per agent. All counts below are over all devices; all bytes are per device.
        num_updates: updates of the run.
        env_steps: environment steps of the run: `total_timesteps` rounded up to whole updates.
        extra_steps: environment steps added by rounding up.
        batch_size: environment steps per update.
        minibatch_size: environment steps per gradient step.
        gradient_steps: gradient steps of the run.
        parameters: number of trained scalars.
        state_bytes: memory of the training state.
        kept_bytes: part of `state_bytes` for auxiliary state: stored rollouts, and other versions of the parameters.
        phases: the plan of each training phase of an update.
        on_host: True if the environments are external (Python) environments, outside of JAX.
        trace_rollout: function that returns the shapes of a rollout, and of its pool of first states if resets are slow.
        compile_update: function that returns the compiled update of one run.
    """

    devices: int
    num_updates: int
    env_steps: int
    extra_steps: int
    batch_size: int
    minibatch_size: int
    gradient_steps: int
    parameters: int
    state_bytes: int
    kept_bytes: int
    phases: tuple[PhasePlan, ...]
    on_host: bool
    trace_rollout: Callable[[], Any] = field(repr=False, compare=False)
    compile_update: Callable[[], Any] = field(repr=False, compare=False)

    @functools.cached_property
    def rollout_bytes(self) -> int:
        """Return the memory of one rollout, including its pool of first states, in bytes. Traces a rollout."""
        return num_bytes(self.trace_rollout())

    @functools.cached_property
    def update_bytes(self) -> int:
        """Return the peak memory of an update on each device, in bytes, as reported by the compiler. Compiles the update."""
        return needed_bytes(self.compile_update())

    def __str__(self) -> str:
        rows = [(name, getattr(self, name)) for name in TABLE]
        for phase in self.phases if len(self.phases) > 1 else ():
            rows += [(f"{phase.name} phases", phase.runs), ("  gradient_steps", phase.gradient_steps)]
            rows += [("  left_over", phase.left_over)] if phase.left_over else []
        lines = [f"{name:<16}{value:>16,}" for name, value in rows]
        return "\n".join([*lines, HOST] if self.on_host else lines)
