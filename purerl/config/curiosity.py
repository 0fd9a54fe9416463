"""Config fields of Random Network Distillation."""

from purerl.config.fields import Config, configclass, count, leaf, static
from purerl.config.rules import above, at_least, between, each, finite
from purerl.core.errors import Problem


@configclass
class RNDConfig(Config):
    """Random Network Distillation (Burda et al. 2019, arXiv:1810.12894): rewards for novel observations.

    A trained network predicts the output of a random network. The bonus of a step is the error of this prediction for the
    observation after the step. Bonuses form a second reward stream, which has its own value and discount and does not end with an
    episode.

    Example:
        >>> cfg = purerl.PPOConfig(rnd=purerl.RNDConfig(int_coef=0.5))
        >>> cfg.rnd.gamma_int
        0.99

    Curiosity:
        int_coef: Weight of the intrinsic advantage.
        ext_coef: Weight of the extrinsic advantage. With 0, only the values learn from the environment's rewards.
        gamma_int: Discount factor of intrinsic rewards.
        predictor_fraction: Fraction of steps that train the predictor; each update chooses these steps at random.
        lr_scale: Factor of the learning rate for the predictor.
        obs_clip: Bound on the absolute value of standardised observations, the input of both networks.
        init_steps: Environment steps with random actions before the first update, to initialise the observation statistics.
          Rounded up to whole rollouts, and not counted in `total_timesteps`.
        features: Number of outputs of both networks.
        hidden: Widths of the hidden layers of both networks. The predictor has two more layers of the last width.
    """

    int_coef: float = leaf(1.0, finite(0))
    ext_coef: float = leaf(2.0, finite(0))
    gamma_int: float = leaf(0.99, between(0, 1))
    predictor_fraction: float = leaf(0.25, between(0, 1))
    lr_scale: float = leaf(1.0, finite(0))
    obs_clip: float = leaf(5.0, above(0))
    init_steps: float = count(6400, at_least(0))
    features: int = static(64, between(1, 2**16))
    hidden: tuple = static((128,), each(between(1, 2**16)))

    def cross_field_errors(self) -> list[Problem]:
        return [] if self.hidden else [Problem("hidden", self.hidden, "must have at least one layer")]
