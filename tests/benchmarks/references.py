"""Published scores of gymnax's environments, and the optima that can be computed.

python -m tests.benchmarks.references          computes the optima; takes seconds
"""

from typing import NamedTuple

import numpy as np


class Reference(NamedTuple):
    """Reference scores of an environment, and the source of the optimum.

    published: gymnax's published score of its own PPO agent (https://github.com/RobertTLange/gymnax, its table of environments).
    optimum: the highest possible mean return.
    why: the source of the optimum.
    """

    published: float | None = None
    optimum: float | None = None
    why: str = ""

    @property
    def score(self) -> float | None:
        """Return the smaller of the known scores; None if both are unknown."""
        return min((x for x in (self.published, self.optimum) if x is not None), default=None)


REFERENCES = {
    "CartPole-v1": Reference(500, 500, "a reward of 1 in each of 500 steps"),
    "Acrobot-v1": Reference(-80),
    "Pendulum-v1": Reference(-130, -137, "computed: the best policy that knows angle and speed exactly"),
    "MountainCar-v0": Reference(-118),
    "MountainCarContinuous-v0": Reference(92),
    "Asterix-MinAtar": Reference(15),
    "Breakout-MinAtar": Reference(28),
    "Freeway-MinAtar": Reference(58),
    "Seaquest-MinAtar": Reference(),
    "SpaceInvaders-MinAtar": Reference(131),
    "Catch-bsuite": Reference(1, 1, "every ball is caught"),
    "DeepSea-bsuite": Reference(0, 0.99, "a reward of 1 for a path that costs 0.01"),
    "DiscountingChain-bsuite": Reference(1.1, 1.1, "the reward of the first of five actions; the others have 1"),
    "MemoryChain-bsuite": Reference(0.1, 1, "every question is answered"),
    "SimpleBandit-bsuite": Reference(None, 0.5, "chance: one step, no observation, and the arms are shuffled in each episode"),
    "UmbrellaChain-bsuite": Reference(1, 1, "the umbrella; the other rewards are 1 or -1 by chance"),
    "FourRooms-misc": Reference(1, 1, "a reward of 1 at the goal"),
    "FrozenLake-misc": Reference(None, 0.744, "computed: the best policy that knows the time"),
    "MetaMaze-misc": Reference(32),
    "PointRobot-misc": Reference(10),
    "BernoulliBandit-misc": Reference(90, 89.4, "computed: the best policy that remembers all rewards"),
    "GaussianBandit-misc": Reference(None, 7.09, "computed: the best policy that remembers all rewards"),
    "Pong-misc": Reference(None, 1000, "a reward of 1 in each of 1,000 steps"),
    "Reacher-misc": Reference(),
    "Swimmer-misc": Reference(),
}


def bernoulli_bandit(probability: float = 0.9, num_steps: int = 100) -> float:
    """Compute the best mean return with two arms that pay with probabilities `p` and `1 - p`, in a random order.

    The state `d` is the number of pulls whose results suggest that the first arm is better, minus the number of the other pulls.
    The odds that the first arm is better are `(p / (1 - p)) ** d`.
    """
    d = np.arange(-num_steps - 1, num_steps + 2)
    log_odds = d * np.log(probability / (1 - probability))
    first_is_better = 1 / (1 + np.exp(-log_odds))
    pays = first_is_better * probability + (1 - first_is_better) * (1 - probability)
    value = np.zeros(len(d))
    for _ in range(num_steps):
        up, down = np.append(value[1:], value[-1]), np.append(value[0], value[:-1])
        value = np.maximum(pays * (1 + up) + (1 - pays) * down, (1 - pays) * (1 + down) + pays * up)
    return float(value[num_steps + 1])


def gaussian_bandit(mean: float = -1.0, deviation: float = 1.0, noise: float = 0.1, num_steps: int = 100) -> float:
    """Compute the best mean return with an arm that pays 0 and an arm that pays `N(mu, noise)`; `mu` is `N(mean, deviation)`.

    The state after `n` pulls of the second arm is the posterior mean of `mu`, here a point of a grid. The posterior variance is
    `1 / (1 / deviation^2 + n / noise^2)`.
    """
    grid = np.linspace(mean - 7 * deviation, mean + 7 * deviation, 2801)
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    weights = weights / weights.sum()
    values = [np.zeros_like(grid)] * (num_steps + 1)
    for step in reversed(range(num_steps)):
        better = []
        for n in range(step + 1):
            variance = 1 / (deviation**-2 + n * noise**-2)
            moves = variance / np.sqrt(variance + noise**2) * nodes
            after = sum(w * np.interp(grid + move, grid, values[n + 1]) for w, move in zip(weights, moves, strict=True))
            better.append(np.maximum(grid + after, values[n]))
        values = better
    return float(np.interp(mean, grid, values[0]))


def frozen_lake(num_steps: int = 100) -> float:
    """Compute the highest probability of reaching the goal of the slippery 4 x 4 map within `num_steps` steps."""
    tiles, moves = "SFFFFHFHFFFHHFFG", ((0, -1), (1, 0), (0, 1), (-1, 0))

    def reached(tile, move):
        row, column = np.clip((tile // 4 + moves[move % 4][0], tile % 4 + moves[move % 4][1]), 0, 3)
        return 4 * row + column

    value = np.array([float(tile == "G") for tile in tiles])
    free = [tile for tile in range(16) if tiles[tile] in "SF"]
    for _ in range(num_steps):
        after = value.copy()
        for tile in free:  # the agent slips to either side as often as it goes straight on
            after[tile] = max(np.mean([value[reached(tile, move + slip)] for slip in (-1, 0, 1)]) for move in range(4))
        value = after
    return float(value[0])


def pendulum(cells: int = 90, num_steps: int = 200, discount: float = 1.0) -> float:
    """Compute the best mean return on Pendulum, by backward induction on a grid of angles and speeds with linear interpolation.

    With a discount, the result is the undiscounted mean return of the policy that is best for discounted returns. The error is
    proportional to the cell width, so the result is extrapolated from two grids, one twice as fine as the other.
    """
    return 2 * _pendulum_on_a_grid(2 * cells, num_steps, discount) - _pendulum_on_a_grid(cells, num_steps, discount)


def _pendulum_on_a_grid(cells: int, num_steps: int, discount: float, time_step: float = 0.05, most_speed: float = 8.0) -> float:
    angles = np.linspace(-np.pi, np.pi, cells, endpoint=False)
    speeds = np.linspace(-most_speed, most_speed, cells - cells // 9)
    angle, speed = np.meshgrid(angles, speeds, indexing="ij")
    choices = []
    for torque in np.linspace(-2, 2, 17):
        next_speed = np.clip(speed + (15 * np.sin(angle) + 3 * torque) * time_step, -most_speed, most_speed)
        row = (angle + next_speed * time_step + np.pi) / (2 * np.pi) * cells
        column = (next_speed + most_speed) / (2 * most_speed) * (len(speeds) - 1)
        i, j = np.floor(row).astype(int), np.minimum(np.floor(column).astype(int), len(speeds) - 2)
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
        choices.append((i % cells, (i + 1) % cells, row - i, j, column - j, reward))

    def after(values, discount):
        """Return the values of each torque from the values of the next states."""
        follow = lambda i, k, x, j, y: (
            (1 - x) * ((1 - y) * values[i, j] + y * values[i, j + 1]) + x * ((1 - y) * values[k, j] + y * values[k, j + 1])
        )
        return np.stack([reward + discount * follow(*where) for *where, reward in choices])

    value = returns = np.zeros_like(angle)
    for _ in range(num_steps):
        of_torques = after(value, discount)
        value, best = of_torques.max(0), of_torques.argmax(0)[None]
        returns = np.take_along_axis(after(returns, 1.0), best, 0)[0]
    return float(returns[:, np.abs(speeds) <= 1].mean())  # an episode begins at any angle, with a speed between -1 and 1


OPTIMA = {
    "Pendulum-v1": pendulum,
    "BernoulliBandit-misc": bernoulli_bandit,
    "GaussianBandit-misc": gaussian_bandit,
    "FrozenLake-misc": frozen_lake,
}

if __name__ == "__main__":
    for name, optimum in OPTIMA.items():
        print(f"{name}: {optimum():.3f}")
    for discount in (0.95, 0.99):
        print(f"Pendulum-v1, the best policy with a discount of {discount}: {pendulum(discount=discount):.1f}")
