"""The config of each algorithm; `purerl.fields` says how configs work."""

import dataclasses
import math

import jax

from purerl.errors import Problem
from purerl.fields import ANY, PAIRS, Config, above, at_least, between, config, count, each, finite, leaf, one_of, static


@config
class PPOConfig(Config):
    """Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347).

    The defaults are those of "The 37 Implementation Details of Proximal Policy Optimization" (Huang et al. 2022) for
    classic control. Floats are leaves and can be swept by `jax.vmap`; all other fields are static.

    Attributes:
        env: The id of a gymnax environment.
        env_kwargs: Arguments of its constructor, as pairs: `(("size", 12),)` for DeepSea-bsuite.
        env_params: Overrides of its parameters by name: `{"max_steps_in_episode": 200}`. May be swept.
        total_timesteps: Environment steps over all environments, rounded up to whole updates; `Train.plan` says by how much.
        num_envs: Environments that run in parallel.
        num_steps: Steps of each environment between two updates.
        num_epochs: Passes over the rollout in each update.
        num_minibatches: Gradient steps in each pass; must divide `num_envs * num_steps`.
        lr: Learning rate at the first update.
        lr_final: Learning rate that a `linear` schedule ends at.
        lr_schedule: `linear` in the number of updates (at update i of n: `lr + (lr_final - lr) * i / n`), or `constant`.
        adam_eps: Adam's epsilon.
        gamma: Discount.
        gae_lambda: Trade-off of bias (0) against variance (1), for `gae` and `td_lambda`.
        estimator: Advantages and value targets: `gae`, `n_step` or `td_lambda`.
        return_steps: Rewards in each return of `n_step`; 0 reaches to the end of the rollout.
        clip_eps: The ratio of new to old probability is clipped to `1 +- clip_eps`.
        vf_coef: Weight of the value loss, which is half a squared error.
        ent_coef: Weight of the entropy bonus.
        value_clip: How the value's own step is limited: `max` takes the worse of the clipped and the unclipped error,
          `replace` the clipped one alone, `none` the unclipped one.
        value_clip_eps: How far a value may move, in units of return.
        advantage_norm: Advantages are standardised over each `minibatch`, over the `batch`, or `none`.
        max_grad_norm: Gradients of all networks together are scaled down to this norm; inf disables.
        normalize_obs: The network sees observations standardised by running statistics.
        obs_clip: Bound of a standardised observation.
        normalize_reward: Rewards are divided by the running standard deviation of the discounted return, and not centred.
        reward_clip: Bound of a scaled reward; inf disables.
        normalize_value: The network gives values standardised by the running statistics of the value targets.
        torso: `mlp`, `cnn` (MinAtar-sized images), or `auto`: cnn for observations of rank 3.
        hidden: Widths of the hidden layers; of those after the convolution for `cnn`.
        activation: Nonlinearity: `tanh`, `relu`, `swish`, `gelu` or `elu`.
        log_std_init: Logarithm of the initial standard deviation of a Box action, in the environment's units.
        nonfinite: An update that would leave a parameter NaN or infinite is kept (`ignore`), or skipped and counted for that seed
          alone (`freeze`).
        metrics_every: Updates whose metrics are added up to one row; for runs so long that a row for each is too much.
    """

    env: str = static("CartPole-v1")
    env_kwargs: tuple = static((), PAIRS)
    env_params: dict = dataclasses.field(default_factory=dict, metadata={"rule": ANY})

    total_timesteps: int = count(500_000, at_least(1))
    num_envs: int = static(4, at_least(1))
    num_steps: int = static(128, at_least(1))
    num_epochs: int = static(4, between(1, 2**16))
    num_minibatches: int = static(4, at_least(1))

    lr: float = leaf(2.5e-4, finite(0))
    lr_final: float = leaf(0.0, finite(0))
    lr_schedule: str = static("linear", one_of("linear", "constant"))
    adam_eps: float = leaf(1e-5, finite(0))

    gamma: float = leaf(0.99, between(0, 1))
    gae_lambda: float = leaf(0.95, between(0, 1))
    estimator: str = static("gae", one_of("gae", "n_step", "td_lambda"))
    return_steps: int = static(0, between(0, 2**31 - 1))

    clip_eps: float = leaf(0.2, above(0))
    vf_coef: float = leaf(0.5, finite(0))
    ent_coef: float = leaf(0.01, finite(0))
    value_clip: str = static("max", one_of("max", "replace", "none"))
    value_clip_eps: float = leaf(0.2, above(0))
    advantage_norm: str = static("minibatch", one_of("minibatch", "batch", "none"))
    max_grad_norm: float = leaf(0.5, above(0))

    normalize_obs: bool = static(False)
    obs_clip: float = leaf(10.0, above(0))
    normalize_reward: bool = static(False)
    reward_clip: float = leaf(math.inf, above(0))
    normalize_value: bool = static(False)

    torso: str = static("auto", one_of("auto", "mlp", "cnn"))
    hidden: tuple = static((64, 64), each(between(1, 2**16)))
    activation: str = static("tanh", one_of("tanh", "relu", "swish", "gelu", "elu"))
    log_std_init: float = leaf(0.0, finite())

    nonfinite: str = static("ignore", one_of("ignore", "freeze"))
    metrics_every: int = static(1, at_least(1))

    @property
    def batch_size(self) -> int:
        """Environment steps of one update."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """Environment steps of one gradient step."""
        return self.batch_size // self.num_minibatches

    @property
    def num_updates(self) -> int:
        """Updates of the whole run, the last one whole."""
        return -(-int(self.total_timesteps) // self.batch_size)

    def inconsistencies(self) -> list[Problem]:
        found = []
        if self.batch_size >= 2**31:
            hint = f"with num_steps = {self.num_steps} a rollout has {self.batch_size} steps; it must be below 2**31"
            found.append(Problem("num_envs", self.num_envs, hint))
        elif self.batch_size % self.num_minibatches:
            size, wanted = self.batch_size, min(self.num_minibatches, self.batch_size)
            below = next(d for d in range(wanted, 0, -1) if size % d == 0)
            over = next((d for d in range(wanted, min(2 * wanted, size) + 1) if size % d == 0), below)
            hint = f"must divide num_envs * num_steps = {size}; {' or '.join(map(str, sorted({below, over})))} would work"
            found.append(Problem("num_minibatches", self.num_minibatches, hint))
        elif self.minibatch_size == 1 and self.advantage_norm == "minibatch":
            hint = "gives minibatches of one step, whose standardised advantage is always 0; use fewer, or advantage_norm='batch'"
            found.append(Problem("num_minibatches", self.num_minibatches, hint))
        if self.batch_size < 2**31 <= self.metrics_every * self.batch_size:
            hint = f"a row would count 2**31 steps or more; at most {(2**31 - 1) // self.batch_size} would work"
            found.append(Problem("metrics_every", self.metrics_every, hint))
        return found

    def doubts(self) -> list[Problem]:
        if isinstance(self.clip_eps, jax.core.Tracer) or not 1 <= self.clip_eps < math.inf:
            return []
        return [Problem("clip_eps", self.clip_eps, "from 1 on no decrease of a probability is clipped; 0.1 to 0.3 is usual")]


ALGORITHMS: dict[str, type[Config]] = {"ppo": PPOConfig}


def algorithm_of(cfg: Config) -> str:
    """The name of the algorithm that a config configures, as on the command line."""
    return next(name for name, cls in ALGORITHMS.items() if cls is type(cfg))
