"""Sizes of batches and minibatches, the divisibility rules between these sizes, and counts of updates."""

from purerl.core.errors import Problem, divisors, neighbours, would_work


class Batches:
    """A base class of configs: sizes of batches, minibatches and training sequences, and counts of updates."""

    total_timesteps: float
    learning_starts: float
    num_envs: int
    num_steps: int
    num_minibatches: int
    minibatches: str
    sequence_length: int
    memory: str
    advantage_norm: str
    metrics_every: int

    @property
    def batch_size(self) -> int:
        """Return the number of environment steps that an update collects."""
        return self.num_envs * self.num_steps

    @property
    def columns(self) -> int:
        """Return the number of environments in a training batch; with replayed rollouts, a sum over all rollouts."""
        return self.num_envs

    @property
    def training_size(self) -> int:
        """Return the number of environment steps in a training batch; with replayed rollouts, more than `batch_size`."""
        return self.columns * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """Return the number of environment steps per gradient step."""
        return self.training_size // self.num_minibatches

    @property
    def training_length(self) -> int:
        """Return the number of steps in a training sequence of a recurrent network."""
        return self.sequence_length or self.num_steps

    @property
    def skipped_updates(self) -> int:
        """Return the number of updates before the first gradient step."""
        return -(-int(self.learning_starts) // self.batch_size)

    @property
    def num_updates(self) -> int:
        """Return the number of updates in the whole run, rounded up."""
        return -(-int(self.total_timesteps) // self.batch_size)

    def batch_problems(self) -> list[Problem]:
        """Return a problem for each size that is too large, too small, or not divisible as required."""
        if self.training_size >= 2**31:
            name, other = ("num_envs", "num_steps") if self.training_size < 2**31 * self.num_envs else ("num_steps", "num_envs")
            value, most = getattr(self, name), (2**31 - 1) * getattr(self, name) // self.training_size
            hint = f"a batch must have fewer than 2**31 steps; with {other} = {getattr(self, other)}, it has {self.training_size}"
            found = [Problem(name, value, f"{hint}; at most {most} would work")]
        else:
            found = self.minibatch_problems(self.memory != "none" and self.num_steps % self.training_length == 0)
        if self.training_size == 1 and self.advantage_norm != "none":
            hint = "the standardised advantage of one step is always 0; use more steps, or advantage_norm='none'"
            found.append(Problem("advantage_norm", self.advantage_norm, hint))
        if self.memory != "none" and self.num_steps % self.training_length:
            choices = neighbours(self.sequence_length, divisors(self.num_steps))
            hint = f"must divide num_steps = {self.num_steps}{would_work(choices)}"
            found.append(Problem("sequence_length", self.sequence_length, hint))
        if self.training_size < 2**31 <= self.metrics_every * self.training_size:
            hint = f"an entry of metrics would cover 2**31 steps or more; at most {(2**31 - 1) // self.training_size} would work"
            found.append(Problem("metrics_every", self.metrics_every, hint))
        return found

    def minibatch_problems(self, recurrent: bool) -> list[Problem]:
        """Return a problem if minibatches would be unequal, or would have one step although `advantage_norm` standardises them.

        Args:
            recurrent: True if minibatches must consist of whole training sequences.
        """
        rule, units = self._minibatch_units(recurrent)
        standardises = self.advantage_norm == "minibatch" and self.training_size > 1
        choices = [count for count in divisors(units) if count < self.training_size or not standardises]
        if self.num_minibatches in choices:
            return []
        hint = would_work(neighbours(self.num_minibatches, choices))
        if units % self.num_minibatches == 0:
            rule = "gives minibatches of one step, whose standardised advantage is always 0"
            hint += ", or advantage_norm='batch'"
        return [Problem("num_minibatches", self.num_minibatches, rule + hint)]

    def _minibatch_units(self, recurrent: bool) -> tuple[str, int]:
        """Return the divisibility rule for `num_minibatches` as text, and the number that `num_minibatches` must divide."""
        replay = " * replay" if self.columns > self.num_envs else ""
        if recurrent:
            units = self.training_size // self.training_length
            return f"must divide the number of training sequences, {units}, since the network is recurrent", units
        rule, units = {
            "env": (f"with minibatches = 'env', num_minibatches must divide num_envs{replay}", self.columns),
            "time": ("with minibatches = 'time', num_minibatches must divide num_steps", self.num_steps),
        }.get(self.minibatches, (f"must divide num_envs * num_steps{replay}", self.training_size))
        return f"{rule} = {units}", units
