"""The door for gymnasium's environments that have no id."""

from collections.abc import Callable
from typing import Any

from purerl.core.types import Environment


def from_gymnasium(make: Callable[..., Any], vectorization: str = "sync") -> Environment:
    """Gymnasium's environments behind purerl's protocol, to be passed as `env=`.

    They live on the host: a program calls back to step them. That takes longer than an environment in JAX, runs are trained one
    after the other, and `update` goes on from the newest state alone. What a function makes in training and in an evaluation
    are environments of their own.

    Args:
        make: `() -> gymnasium.Env`; or with `vectorization="vector"`, `(num_envs) -> gymnasium.vector.VectorEnv`.
        vectorization: `sync`, one after the other in this process; `async`, each in a process of its own, which pays off where a
          step takes a millisecond; `vector`, the vector environment that `make` gives. In a script, processes of their own need
          `if __name__ == "__main__":` around what is run.

    Raises:
        ConfigError: it makes something else, or its spaces are none that can be trained.

    Example:
        >>> import gymnasium
        >>> env = purerl.from_gymnasium(lambda: gymnasium.make("CartPole-v1"))
        >>> env.max_steps
        500
        >>> train = purerl.make_train(purerl.PPOConfig(), env=env)
    """
    from purerl.envs.gymnasium import environment

    return environment(make, vectorization)
