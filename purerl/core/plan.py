"""The size of a run, known before anything is compiled."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class PhasePlan(NamedTuple):
    """The number of runs of a phase.

    name: of the phase.
    runs: updates that it is a part of.
    gradient_steps: in all of them.
    left_over: updates after the last of them.
    """

    name: str
    runs: int
    gradient_steps: int
    left_over: int


HOST = """environments on the host, outside of JAX:
  runs are trained one after the other, without jax.vmap
  the program calls back in each step, and is compiled anew in each process
  an update goes on from the newest state alone, and nothing of the environments is exported"""


def needed_bytes(compiled: Any) -> int:
    """Return the bytes a program needs on each device, by its compiler: arguments, results, temporaries."""
    needed = compiled.memory_analysis()
    bytes_of = needed.argument_size_in_bytes + needed.output_size_in_bytes - needed.alias_size_in_bytes
    return bytes_of + needed.temp_size_in_bytes


@dataclass(frozen=True)
class Plan:
    """The size of a run. Prints as a small table, but for `update_bytes`, which takes a compilation.

    devices: that one agent's environments are spread over; the counts below are of all of them, the bytes of each.
    num_updates: updates in all.
    env_steps: environment steps in all, `total_timesteps` rounded up to whole updates.
    extra_steps: by how much it was rounded up.
    batch_size: environment steps of one update.
    minibatch_size: environment steps of one gradient step.
    gradient_steps: gradient steps in all.
    parameters: trained numbers.
    rollout_bytes: memory of one rollout.
    state_bytes: memory of the whole state.
    kept_bytes: of that, what an algorithm keeps besides: rollouts to learn from again, other versions of the parameters.
    phases: what an update learns.
    on_host: the environments live on the host, outside of JAX.
    compile_update: gives the compiled update of one run.
    """

    devices: int
    num_updates: int
    env_steps: int
    extra_steps: int
    batch_size: int
    minibatch_size: int
    gradient_steps: int
    parameters: int
    rollout_bytes: int
    state_bytes: int
    kept_bytes: int
    phases: tuple[PhasePlan, ...]
    on_host: bool
    compile_update: Callable[[], Any] = field(repr=False, compare=False)

    @functools.cached_property
    def update_bytes(self) -> int:
        """Return the most bytes that an update needs on a device, by the compiler. Compiles it."""
        return needed_bytes(self.compile_update())

    def __str__(self) -> str:
        rows = [(x.name, getattr(self, x.name)) for x in fields(self) if x.name not in ("phases", "on_host", "compile_update")]
        for phase in self.phases if len(self.phases) > 1 else ():
            rows += [(f"{phase.name} phases", phase.runs), ("  gradient_steps", phase.gradient_steps)]
            rows += [("  left_over", phase.left_over)] if phase.left_over else []
        lines = [f"{name:<16}{value:>16,}" for name, value in rows]
        return "\n".join([*lines, HOST] if self.on_host else lines)
