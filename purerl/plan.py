"""What a run will do, known before anything is compiled."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Plan:
    """The size of a run. Prints as a small table.

    num_updates: updates in all.
    env_steps: environment steps in all, `total_timesteps` rounded up to whole updates.
    extra_steps: by how much it was rounded up.
    batch_size: environment steps of one update.
    minibatch_size: environment steps of one gradient step.
    gradient_steps: gradient steps in all.
    parameters: trained numbers.
    rollout_bytes: memory of one rollout.
    state_bytes: memory of the whole state.
    """

    num_updates: int
    env_steps: int
    extra_steps: int
    batch_size: int
    minibatch_size: int
    gradient_steps: int
    parameters: int
    rollout_bytes: int
    state_bytes: int

    def __str__(self) -> str:
        return "\n".join(f"{field.name:<16}{getattr(self, field.name):>16,}" for field in fields(self))
