"""Random Network Distillation (Burda et al. 2019, arXiv:1810.12894): an intrinsic reward, for PPO, PPG and APPO.

    bonus_t = mean((f(z) - g(z))^2),    z = clip((s'_t - mean) / std, +- obs_clip), s'_t the next observation before any reset
    F_t     = gamma_int * F_{t-1} + bonus_t,    per environment, never reset
    r_t     = bonus_t / std(F)
    A       = ext_coef * A_ext + int_coef * A_int

The network f is random and fixed; g learns to predict f on a fraction of the steps. For the bonus, observations are standardised
with statistics from before the rollout; for the training of g, with statistics from after the rollout.

**Where papers and implementations differ.** Each of the two reward streams has its own value and discount. The intrinsic stream
does not end with an episode (as in the paper; rlib ends it). The next observation is the one before any reset. The variance of F
starts at 1, and this prior counts as 1e-4 values of F, as in OpenAI's code.

**Defaults** are the paper's coefficients (2 extrinsic, 1 intrinsic, `gamma_int = 0.99`, a quarter of the steps for the
predictor), with networks for small observations instead of Atari.

**When to choose it.** If rewards are so rare that PPO never receives one. On DeepSea of size 10 to 20, every seed found the
rewarded path with RND, and hardly any seed without RND. (On DeepSea of size 8, PPO alone finds the path in seven of eight
seeds.) On DoorKey 8 x 8 of Navix 4, the shares of successful episodes are indistinguishable (0.14 with RND, 0.30 without; 0.12
and 0.11 on Navix 0.7.4), though eight of eight seeds reach the goal with RND, and five of eight without. If rewards are easy to
find, RND gains nothing (FourRooms; `tests/benchmarks/RESULTS.md`). An environment step takes about four times as long as
without RND (`tests/benchmarks/speed.md`).

**Metrics** in addition to PPO's:

- `bonus`: the prediction error before scaling. The bonus falls while the environment becomes familiar, and rises when something
  new is found.
- `intrinsic_reward`: the bonus after scaling.
- `predictor_loss`: the mean squared error of the predictor on the steps that train it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from purerl.acting.normalize import EPSILON, Moments, RewardScale, initial_moments, merge, reward_sums, standardize_with
from purerl.acting.rollout import collect, reset_actor
from purerl.acting.wrappers import with_uniform_policy
from purerl.config.base import OnPolicyConfig
from purerl.core.environment import Environment
from purerl.core.errors import config_error
from purerl.core.keys import fold_in_name
from purerl.core.metrics import mean_of
from purerl.core.platform import to_strong_dtypes
from purerl.core.reductions import local_key, pmean
from purerl.core.types import Intrinsic, Network, PyTree, Transition
from purerl.networks.foreign import apply_module
from purerl.networks.initializers import initialize
from purerl.networks.layers import CNN, MLP, Linear
from purerl.networks.torsos import convolutions, drop_entries, encode

PRIOR = 1e-4  # number of values of F that the initial variance 1 counts for, as in OpenAI's code


class RNDState(struct.PyTreeNode):
    """The state of random network distillation.

    Attributes:
        target: parameters of the random network.
        obs: `Moments` of the encoded observations, which are the networks' input after standardisation.
        scale: the running scale of bonuses.
    """

    target: PyTree
    obs: Moments
    scale: RewardScale


class RNDBatch(struct.PyTreeNode):
    """Inputs and targets of the predictor for one step.

    Attributes:
        obs: the next observation, in the environment's dtype: a standardised image would take four times the memory.
        features: `[F]` float32, the output of the random network.
        counts: float32, 1 if the step trains the predictor, else 0.
    """

    obs: PyTree
    features: jax.Array
    counts: jax.Array


class RNDNetwork(nn.Module):
    """A network from observations `[N, ...]` to features `[N, F]`: a torso, layers of the widths `further`, and a dense layer."""

    torso: nn.Module
    further: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.torso(x)
        for i, width in enumerate(self.further):
            x = MLP((width,), nn.relu, name=f"further_{i}")(x)
        return Linear(self.features)(x)


def rnd(cfg: OnPolicyConfig, env: Environment, network: Network) -> Intrinsic:
    """Return the intrinsic reward of a config with `rnd`.

    Args:
        cfg: a config whose `rnd` is not None.
        env: environments, in which random actions are taken before the first update.
        network: policy and value function; the policy's shapes are those of the random actions.
    """
    previous = (f"previous_{name}" for name in cfg.memory_inputs)
    settings = cfg.intrinsic
    hidden, unseen = settings.hidden, (cfg.action_mask, cfg.critic_obs, *previous)
    space = drop_entries(env.observation_space, unseen)
    layers = convolutions(space)
    torso = lambda: MLP(hidden, nn.relu) if layers is None else CNN(layers, hidden, nn.relu)
    random_net = RNDNetwork(torso(), (), settings.features)
    predictor = RNDNetwork(torso(), (hidden[-1],) * 2, settings.features)
    seen_of = lambda obs: drop_entries(obs, unseen)
    read = lambda obs: encode(seen_of(obs), space)

    def apply(net: RNDNetwork, params: PyTree, z: jax.Array) -> jax.Array:
        """Map `z [L, N, ...]` to features `[L, N, F]`."""
        return apply_module(net, params, z.reshape(-1, *z.shape[2:])).reshape(*z.shape[:2], -1)

    def standardise(obs: Moments, seen: PyTree) -> jax.Array:
        return standardize_with(obs, encode(seen, space), settings.obs_clip)

    def init(key: jax.Array, obs: PyTree) -> tuple[dict[str, PyTree], RNDState]:
        z = read(jax.tree.map(lambda x: x[None], obs))[0]
        nets = {"predictor": predictor, "target": random_net}
        params = {name: net.init(key, z)["params"] for name, net in nets.items()}
        params = initialize(fold_in_name(key, "networks"), params, "orthogonal", lambda path: math.sqrt(2))
        moments = random_moments(cfg, env, network, read, initial_moments(z.shape[1:]), fold_in_name(key, "random actions"))
        scale = RewardScale(jnp.zeros(z.shape[0], jnp.float32), initial_moments(()))
        return {"predictor": params["predictor"]}, RNDState(params["target"], moments, scale)

    def reward(params: PyTree, state: RNDState, steps: Transition) -> tuple[jax.Array, RNDState, dict[str, Any]]:
        z = standardise(state.obs, seen_of(steps.next_obs))
        error = apply(predictor, params["predictor"], z) - apply(random_net, state.target, z)
        bonus = jnp.square(error).mean(-1)
        scale, _ = reward_sums(state.scale, bonus, jnp.zeros_like(steps.first), settings.gamma_int, prior=PRIOR)
        paid = bonus * jax.lax.rsqrt(scale.moments.variance + EPSILON)
        after = state.replace(obs=merge(state.obs, read(steps.next_obs)), scale=scale)
        return paid, after, {"bonus": mean_of(bonus), "intrinsic_reward": mean_of(paid)}

    def prepare(state: RNDState, steps: Transition, key: jax.Array) -> RNDBatch:
        seen = seen_of(steps.next_obs)
        features = apply(random_net, state.target, standardise(state.obs, seen))
        counts = jax.random.bernoulli(key, settings.predictor_fraction, steps.first.shape)
        return RNDBatch(seen, features, counts.astype(jnp.float32))

    def loss(params: PyTree, state: RNDState, seen: RNDBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        predicted = apply(predictor, params["predictor"], standardise(state.obs, seen.obs))
        error = predictor_loss(predicted, seen.features, seen.counts)
        return error, {"predictor_loss": error}

    return Intrinsic(init, reward, prepare, loss)


def predictor_loss(prediction: jax.Array, features: jax.Array, counts: jax.Array) -> jax.Array:
    """Compute the mean squared error over features, averaged over the counted steps of all devices; 0 if no step counts.

    Args:
        prediction, features: `[..., F]`.
        counts: `[...]`, 1 or 0.
    """
    error = jnp.square(prediction - features).mean(-1)
    counted = pmean(counts.sum())  # the mean per device, so that the mean of the devices' losses is the loss
    return (counts * error).sum() / jnp.where(counted > 0, counted, jnp.ones_like(counted))


def random_moments(
    cfg: OnPolicyConfig, env: Environment, network: Network, read: Callable, moments: Moments, key: jax.Array
) -> Moments:
    """Merge the next observations of rollouts with random actions into `moments`. The key is consumed."""
    acting = with_uniform_policy(network, env.action_space, jnp.bool_(True))
    actor = reset_actor(env, acting, cfg.num_envs, key)
    params = acting.init(fold_in_name(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))

    def one(carry, i):
        actor, moments = carry
        key_i = local_key(key, "rollout", i)
        actor, rollout, _ = collect(env, acting, params, actor, key_i, cfg.num_steps, valued=False, keep_next_obs=True)
        return (actor, merge(moments, read(rollout.steps.next_obs))), None

    rollouts = -(-int(cfg.intrinsic.init_steps) // cfg.batch_size)
    (_, moments), _ = jax.lax.scan(one, (actor, moments), jnp.arange(rollouts, dtype=jnp.uint32))
    return moments


def intrinsic_of_pair(init: Callable, reward: Callable) -> Intrinsic:
    """Return an intrinsic reward from a custom pair of pure functions.

    Args:
        init: `(key, obs [B, ...]) -> state`.
        reward: `(state, Transition [T, B] with next_obs) -> (reward [T, B], state)`.
    """

    def reward_steps(params, state, steps):
        found = reward(state, steps)
        if not (isinstance(found, tuple | list) and len(found) == 2):
            raise config_error("intrinsic", type(found), "reward must return a pair: rewards and new state")
        reward_, after = found
        if np.shape(reward_) != steps.first.shape:
            hint = f"reward must return rewards of shape {list(steps.first.shape)}, one per step"
            raise config_error("intrinsic", list(np.shape(reward_)), hint)
        shapes = lambda tree: jax.tree.map(lambda x: (np.shape(x), jnp.result_type(x).name), tree)
        if shapes(after) != shapes(state):
            raise config_error("intrinsic", shapes(after), f"reward must return a state like its input, {shapes(state)}")
        reward_ = jnp.asarray(reward_).astype(jnp.float32)
        return reward_, to_strong_dtypes(after, "intrinsic"), {"intrinsic_reward": mean_of(reward_)}

    return Intrinsic(lambda key, obs: ({}, init(key, obs)), reward_steps)
