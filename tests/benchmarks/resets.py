"""Steps per second of Craftax: if only environments at an episode's end are reset, if all are reset, and without resets.

python -m tests.benchmarks.resets        needs `pip install '.[craftax]'`; the three variants in turn, fifteen times; ten minutes

Actions are random, and a call takes 64 steps, of 64 environments, and of 4 seeds with 16 environments each under `vmap`.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from purerl.core.auto_reset import AutoReset
from purerl.core.environment import TimeStep
from purerl.envs.suites import craftax

T, REPEATS = 64, 15
ID = "Craftax-Classic-Symbolic-v1"


def programs(seeds, count):
    """Return a dict from a name to a function `(env_state [seeds, count, ...], key) -> env_state`, and the first state."""
    suite = make_craftax_env_from_name(ID, auto_reset=False)
    bare = craftax._CraftaxEnv(suite, suite.default_params)

    def step(key, state, action):
        state, obs, reward, terminated, truncated, _ = bare.step(key, state, action)
        return TimeStep(state, obs, obs, reward.astype(jnp.float32), terminated, truncated)

    def without(keys, state, action):
        return jax.vmap(step)(keys[0], state, action)

    def run(batched_step):
        def one(state, key):
            after = batched_step(jax.random.split(key, (2, count)), state, jax.random.randint(key, (count,), 0, 17))
            return after.env_state, after.obs.sum()

        of_seed = lambda state, key: jax.lax.scan(one, state, jax.random.split(key, T))[0]
        if seeds == 1:
            return lambda state, key: jax.tree.map(lambda x: x[None], of_seed(jax.tree.map(lambda x: x[0], state), key))
        return lambda state, key: jax.vmap(of_seed)(state, jax.random.split(key, seeds))

    slow, fast = (AutoReset(jax.vmap(step), jax.vmap(bare.reset), slow_reset) for slow_reset in (True, False))
    ways = {"those that need it": slow, "all at once": fast, "no resets": without}
    state = jax.jit(jax.vmap(jax.vmap(bare.reset)))(jax.random.split(jax.random.key(0), (seeds, count)))[0]
    return {name: jax.jit(run(way)) for name, way in ways.items()}, state


def measure(seeds, count):
    made, start = programs(seeds, count)
    states, rates = {}, {name: [] for name in made}
    for name, program in made.items():
        states[name] = jax.block_until_ready(program(start, jax.random.key(0)))
    for i in range(REPEATS):
        for name, program in made.items():
            begin = time.process_time()
            states[name] = jax.block_until_ready(program(states[name], jax.random.key(i)))
            rates[name].append(seeds * count * T / (time.process_time() - begin))
    print(f"{seeds} x {count}, steps a second of CPU time:")
    for name, all_rates in rates.items():
        low, high = np.percentile(all_rates, (25, 75))
        print(f"    {name:20} {np.median(all_rates):8.0f}    middle half {low:.0f} to {high:.0f}")


def main():
    measure(1, 64)
    measure(4, 16)


if __name__ == "__main__":
    main()
