"""The size of a run, known before anything is compiled."""

from dataclasses import dataclass, fields
from typing import NamedTuple


class PhasePlan(NamedTuple):
    """How often a phase runs.

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


@dataclass(frozen=True)
class Plan:
    """The size of a run. Prints as a small table.

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
    on_host: bool = False

    def __str__(self) -> str:
        rows = [(field.name, getattr(self, field.name)) for field in fields(self) if field.name not in ("phases", "on_host")]
        for phase in self.phases if len(self.phases) > 1 else ():
            rows += [(f"{phase.name} phases", phase.runs), ("  gradient_steps", phase.gradient_steps)]
            rows += [("  left_over", phase.left_over)] if phase.left_over else []
        lines = [f"{name:<16}{value:>16,}" for name, value in rows]
        return "\n".join([*lines, HOST] if self.on_host else lines)
