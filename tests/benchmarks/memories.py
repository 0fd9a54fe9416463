"""Memories of the study `remembering`, with about 21,000 parameters each: built-in ones, and modules; and what they cost.

    python -m tests.benchmarks.memories --record

The command measures the training of cards, 32 environments and sequences of 128 steps: the median of five runs of 25 updates,
with all memories in turn.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import purerl
from purerl.networks.recurrences import linear_recurrence
from tests.benchmarks import recording

UPDATES = 25


class S5(nn.Module):
    """A diagonal state space model (Smith et al. 2023, arXiv:2208.04933), with the eigenvalues of HiPPO-LegS.

        s' = a * s + (a - 1) / lambda * (x B),    a = exp(lambda * dt)
        y = gelu(2 Re(s' C) + D * x)

    The carry is `(Re(s), Im(s))`, each `[N, states]`. Of each conjugate pair of states, one is computed.
    """

    size: int
    states: int

    def initial_carry(self, num_envs):
        return jnp.zeros((num_envs, self.states)), jnp.zeros((num_envs, self.states))

    @nn.compact
    def __call__(self, carry, x, first):
        real, imaginary = eigenvalues(self.states)
        rate = self.param("rate", lambda key: jnp.log(-real))
        frequency = self.param("frequency", lambda key: imaginary)
        low, high = np.log(1e-3), np.log(1e-1)
        dt = jnp.exp(self.param("dt", lambda key: jax.random.uniform(key, (self.states,), minval=low, maxval=high)))
        through = self.param("through", nn.initializers.normal(1.0), (self.size,))
        inputs, outputs = (nn.Dense(n, use_bias=False, name=name) for n, name in ((2 * self.states, "b"), (self.size, "c")))
        eigen = jax.lax.complex(-jnp.exp(rate), frequency)
        decay = jnp.exp(eigen * dt)
        added = (decay - 1) / eigen * jax.lax.complex(*jnp.split(inputs(x), 2, axis=-1))
        keep = jnp.where(first[..., None], 0, decay[None, None])
        states = linear_recurrence(keep, added, jax.lax.complex(*carry))
        y = nn.gelu(2 * outputs(jnp.concatenate([states.real, states.imag], axis=-1)) + through * x)
        return y, (states[-1].real, states[-1].imag)


def eigenvalues(count):
    """Return the real and imaginary parts of the eigenvalues of HiPPO-LegS's normal part with positive imaginary parts."""
    n = np.arange(2 * count)
    root = np.sqrt(2 * n + 1)
    skew = -(np.tril(np.outer(root, root)) - np.diag(n)) + np.outer(root, root) / 2 + np.eye(2 * count) / 2
    imaginary = np.linalg.eigvalsh(-1j * skew)[count:]
    return jnp.full(count, -0.5), jnp.asarray(imaginary, jnp.float32)


class ManyScales(nn.Module):
    """The minimal GRU, whose units forget over 2 to `steps` steps when they are new, in equal ratios."""

    size: int
    steps: float

    def initial_carry(self, num_envs):
        return jnp.zeros((num_envs, self.size))

    @nn.compact
    def __call__(self, carry, x, first):
        spread = lambda key, shape: -jnp.log(jnp.geomspace(1.0, self.steps, *shape))
        z = nn.sigmoid(nn.Dense(self.size, bias_init=lambda key, shape, dtype: spread(key, shape))(x))
        candidate = nn.Dense(self.size)(x)
        h = linear_recurrence(jnp.where(first[..., None], 0, 1 - z), z * candidate, carry)
        return h, h[-1]


class GatedTransformer(nn.Module):
    """A layer of GTrXL (Parisotto et al. 2020, arXiv:1910.06764) over the last `window` steps of an episode.

    A learnt number for each head and distance replaces the relative encoding of positions. As in Transformer-XL, earlier
    sequences have no gradient: the carry has their keys and values, each `[N, window, size]`, and how many of these are of the
    episode, `[N]`.
    """

    size: int
    heads: int
    window: int

    def initial_carry(self, num_envs):
        past = jnp.zeros((num_envs, self.window, self.size))
        return past, past, jnp.zeros(num_envs, jnp.int32)

    @nn.compact
    def __call__(self, carry, x, first):
        (*past, known), (L, N), W = carry, first.shape, self.window
        x = nn.Dense(self.size)(x).swapaxes(0, 1)  # [N, L, size]
        query, *new = (nn.Dense(self.size, use_bias=False)(nn.LayerNorm()(x)) for _ in range(3))
        key, value = whole = [jnp.concatenate(both, axis=1) for both in zip(past, new, strict=True)]
        distance = np.arange(L)[:, None] + W - np.arange(W + L)[None]  # from each step back to each entry
        episode = jnp.cumsum(first.T, axis=1)  # 0: the episode of the carry
        of_entry = jnp.concatenate([jnp.where(np.arange(W)[None] >= W - known[:, None], 0, -1), episode], axis=1)
        seen = (of_entry[:, None] == episode[..., None]) & ((distance >= 0) & (distance < W))[None]
        query, key, value = (y.reshape(*y.shape[:2], self.heads, -1) for y in (query, key, value))
        bias = self.param("distance", nn.initializers.normal(0.1), (self.heads, W))
        scores = jnp.einsum("nlhd,nmhd->nhlm", query, key) / np.sqrt(query.shape[-1])
        scores = scores + bias[:, np.clip(distance, 0, W - 1)][None]
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9), axis=-1)
        found = nn.Dense(self.size)(jnp.einsum("nhlm,nmhd->nlhd", weights, value).reshape(N, L, -1))
        y = Gate(self.size)(x, nn.relu(found))
        further = nn.Dense(self.size)(nn.relu(nn.Dense(self.size)(nn.LayerNorm()(y))))
        y = Gate(self.size)(y, nn.relu(further))
        since = jnp.where(episode[:, -1] == 0, known + L, (of_entry[:, W:] == episode[:, -1:]).sum(1))
        return y.swapaxes(0, 1), (*(z[:, L:] for z in whole), jnp.minimum(since, W))


class Gate(nn.Module):
    """The gate of GTrXL: a GRU without memory, which at first passes its first input on."""

    size: int

    @nn.compact
    def __call__(self, x, y):
        plain = lambda z: nn.Dense(self.size, use_bias=False)(z)
        r = nn.sigmoid(plain(y) + plain(x))
        z = nn.sigmoid(nn.Dense(self.size, bias_init=nn.initializers.constant(-2.0))(y) + plain(x))
        return (1 - z) * x + z * jnp.tanh(plain(y) + plain(r * x))


MEMORIES = {  # fields of the config, or a module
    "LRU": {"memory": "lru", "memory_size": 64},
    "minimal GRU": {"memory": "min_gru", "memory_size": 160},
    "GRU": {"memory": "gru", "memory_size": 56},
    "S5": S5(64, 80),
    "minimal GRU of 1,000 steps": ManyScales(160, 1000.0),
    "GTrXL": GatedTransformer(32, 4, 128),
    "no memory": {},
}


def costs():
    """Measure the steps per second of each memory; return them with its parameters and the bytes of an update."""
    from tests.benchmarks.studies import objects_of
    from tests.benchmarks.studies_cases import STUDIES

    cases, key, trains = STUDIES["remembering"](), jax.random.key(0), {}
    for name in MEMORIES:
        case = cases[f"RepeatPrevious of 32: {name}"]
        cfg = case.cfg.replace(total_timesteps=UPDATES * case.cfg.batch_size)
        trains[name] = purerl.make_train(cfg, **objects_of(case))
    runs = {name: jax.jit(train).lower(key).compile() for name, train in trains.items()}
    seconds = {name: [] for name in runs}
    for name, run in [*runs.items()] * 6:
        start = time.perf_counter()
        jax.block_until_ready(run(key))
        seconds[name].append(time.perf_counter() - start)
    plans = {name: train.plan for name, train in trains.items()}
    rate = lambda name: plans[name].env_steps / float(np.median(seconds[name][1:]))
    return {name: {"parameters": x.parameters, "steps": rate(name), "bytes": x.update_bytes} for name, x in plans.items()}


def main():
    record, rows = recording.parser(__doc__).parse_args().record, costs()
    for name, row in rows.items():
        print(name, row)
    if record:
        recording.add("memories.json", "costs", rows | {"circumstances": recording.circumstances("memories")})


if __name__ == "__main__":
    sys.exit(main())
