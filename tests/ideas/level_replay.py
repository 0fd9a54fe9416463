"""Prioritised level replay (Jiang et al. 2021, arXiv:2010.03934): replay levels with large advantages."""

import jax
import jax.numpy as jnp

import purerl


def replayed(env, levels):
    """Return a batched environment made from a single `env`; its episodes begin in levels sampled by weight."""

    def begin(level):
        state, obs = jax.vmap(lambda i: env.reset(jax.random.fold_in(jax.random.key(0), i)))(level)
        return {"inner": state, "level": level}, obs

    def reset(keys):
        state, obs = begin(jax.vmap(lambda key: jax.random.randint(key, (), 0, levels))(keys))
        return state | {"weights": jnp.ones(levels)}, obs

    def step(keys, state, action):
        inner, obs, reward, terminated, truncated, _ = jax.vmap(env.step)(keys[0], state["inner"], action)
        level = jax.vmap(lambda key: jax.random.categorical(key, jnp.log(state["weights"])))(keys[1])
        before, done = ({"inner": inner, "level": state["level"]}, obs), terminated | truncated
        now, now_obs = jax.tree.map(lambda x, y: jax.vmap(jnp.where)(done, x, y), begin(level), before)
        info = {"level": state["level"].astype(jnp.float32)}
        now = now | {"weights": state["weights"]}
        return purerl.TimeStep(now, now_obs, obs, reward, terminated, truncated, info)

    space = jax.eval_shape(env.reset, jax.random.key(0))[1]
    return purerl.Environment(reset, step, space, env.action_space, None, ("level",))


def level_replay(cfg, env, network, parts):
    def prioritise(state, rollout, advantages):
        level, score = rollout.steps.info["level"].astype(jnp.int32), jnp.abs(advantages.advantage)
        old = state.actor.env_state["weights"]
        total, count = (jnp.zeros_like(old).at[level].add(x) for x in (score, jnp.ones_like(score)))
        weights = jnp.where(count > 0, 1e-3 + total / count, old)
        env_state = state.actor.env_state | {"weights": weights}
        return state.replace(actor=state.actor.replace(env_state=env_state)), {}

    return purerl.ppo(cfg, env, network, parts, after_learning=prioritise)
