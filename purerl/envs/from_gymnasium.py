"""Adapts environments of gymnasium that have no id."""

from collections.abc import Callable
from typing import Any

from purerl.core.types import Environment


def from_gymnasium(make: Callable[..., Any], vectorization: str = "sync") -> Environment:
    """Gymnasium's environments behind purerl's protocol, to be passed as `env=`.

    They live on the host: a program calls back to step them. That takes longer than an environment in JAX. Seeds and configs
    are trained one after the other, on one device, and there is no `jax.vmap`. No program that calls back is kept compiled.
    The environments' state is no part of the training state: `update` goes on from the newest state alone, and an evaluation has
    environments of its own. `purerl.export` exports the policy, as ever, and no environment.

    Checkpoints hold what the environments and their wrappers keep in attributes, if those are numbers, arrays, random generators
    or MuJoCo's simulation: then a run resumes to the same bits. Otherwise the environments begin anew, and a warning says why.
    Nothing is known of what changes elsewhere: in closures, in attributes of a class, in `__slots__`. An environment that raises
    an error, or whose process dies, ends the run with `purerl.EnvironmentFailed`, saved.

    Wrappers that normalise by running statistics are refused: evaluations would not share them, and `normalize_obs` and
    `normalize_reward` of the config do the same. Wrappers that change rewards are warned of. An action mask is read if it is the
    entry `action_mask` of a dict of observations; masks in info, or given by a method, are warned of.

    Args:
        make: `() -> gymnasium.Env`; or with `vectorization="vector"`, `(num_envs) -> gymnasium.vector.VectorEnv`,
          whose `reset` takes a list of seeds, as gymnasium's own do.
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
