"""Population-based training: after each round, the worst half copies the best half."""

import jax
import jax.numpy as jnp

import purerl

AXES = purerl.Train.seed_axes


def population(cfg, key, members, rounds, updates):
    """Return the learning rates after the last copies, and the mean returns of the last round, before these copies."""
    train_of = lambda lr: purerl.make_train(cfg.replace(lr=lr))

    def advance(lr, state):
        state, metrics = jax.lax.scan(lambda x, _: train_of(lr).update(x), state, length=updates)
        return state, metrics["episode_return"].total.sum() / metrics["episode_return"].count.sum()

    def round(carry, key):
        (lr, state), best = carry, members // 2
        state, score = jax.vmap(advance, (0, AXES), (AXES, 0))(lr, state)
        order = jnp.argsort(-jnp.nan_to_num(score, nan=-jnp.inf))
        source = jnp.arange(members).at[order[best:]].set(order[:best])
        copies = jax.tree.map(lambda x: x[source], state.replace(clock=()))
        near = lr[source] * jax.random.choice(key, jnp.array([0.8, 1.25]), (members,))
        near = jnp.where(source == jnp.arange(members), lr, near)
        return (near, copies.replace(clock=state.clock, key=state.key)), score

    lr = 10 ** jax.random.uniform(key, (members,), minval=-5, maxval=-2)
    begin = jax.vmap(lambda lr, key: train_of(lr).init(key), out_axes=AXES)
    state = begin(lr, jax.random.split(key, members))
    (lr, _), scores = jax.lax.scan(round, (lr, state), jax.random.split(key, rounds))
    return lr, scores[-1]
