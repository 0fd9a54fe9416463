"""Steps of Craftax a second, with resets for those environments alone that need one, for all at once, and without resets.

python -m tests.benchmarks.resets        needs `pip install '.[craftax]'`; the three in turn, five times; three minutes

Random actions, 64 environments, 64 steps a call.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from purerl.envs import craftax
from purerl.envs.auto_reset import auto_reset

B, T, REPEATS = 64, 64, 5
ID = "Craftax-Classic-Symbolic-v1"


def programs():
    """From a name to a function `(env_state, key) -> env_state`."""
    suite = craftax.make(ID, ())
    bare = craftax._Bare(suite, suite.default_params)
    reset = lambda key: bare.reset(key)[::-1]

    def step(key, state, action):
        state, obs, reward, terminated, truncated, _ = bare.step(key, state, action)
        return obs, state, reward.astype(jnp.float32), terminated, truncated, {}

    def without(keys, state, action):
        return jax.vmap(step)(keys[0], state, action)

    def run(batched_step):
        def one(state, key):
            after = batched_step(jax.random.split(key, (2, B)), state, jax.random.randint(key, (B,), 0, 17))
            state, obs = (after[1], after[0]) if isinstance(after, tuple) else (after.env_state, after.obs)
            return state, obs.sum()

        return lambda state, key: jax.lax.scan(one, state, jax.random.split(key, T))

    ways = {"those that need it": auto_reset(reset, step, True), "all at once": auto_reset(reset, step), "no resets": without}
    state = jax.jit(jax.vmap(bare.reset))(jax.random.split(jax.random.key(0), B))[0]
    return {name: jax.jit(run(way)) for name, way in ways.items()}, state


def main():
    made, start = programs()
    states, rates = {}, {name: [] for name in made}
    for name, program in made.items():
        states[name] = jax.block_until_ready(program(start, jax.random.key(0)))[0]
    for i in range(REPEATS):
        for name, program in made.items():
            begin = time.process_time()
            states[name] = jax.block_until_ready(program(states[name], jax.random.key(i)))[0]
            rates[name].append(B * T / (time.process_time() - begin))
    for name, all_rates in rates.items():
        print(f"{name:20} {np.median(all_rates):8.0f} steps a second of CPU time ({min(all_rates):.0f} to {max(all_rates):.0f})")


if __name__ == "__main__":
    main()
