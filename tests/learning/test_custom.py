"""Custom advantage estimator, policy loss, environment and network, a few lines each."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purerl
from purerl import Advantages, Network, Outputs, PPOConfig
from purerl.learning.custom import guard_loss_shape
from purerl.networks.distributions import Categorical
from tests.helpers import probes
from tests.ideas import simulator

CFG = PPOConfig(total_timesteps=20_000, num_envs=16, num_steps=16, lr=5e-3, hidden=(32,), gamma=0.9, ent_coef=0.0)
KEY = jax.random.key(0)


# --- an advantage estimator -------------------------------------------------------------------------------------------


def clipped_gae(steps, cfg):
    """Compute GAE, with advantages cut at two standard deviations."""
    from purerl.learning.advantages import gae

    advantage = gae(steps, cfg.gamma, cfg.gae_lambda).advantage
    bound = 2 * advantage.std()
    advantage = jnp.clip(advantage, -bound, bound)
    return Advantages(advantage, advantage + steps.value)


# --- a policy loss ----------------------------------------------------------------------------------------------------


def drift_loss(outputs, old, advantage, cfg):
    """Compute Discovered Policy Optimisation (Lu et al. 2022, arXiv:2210.05639): a drift in place of the clip."""
    d = outputs.policy.log_prob(old.action) - old.log_prob
    ratio = jnp.exp(d)
    gain = jax.nn.relu((ratio - 1) * advantage - 2 * jnp.tanh((ratio - 1) * advantage / 2))
    loss = jax.nn.relu(d * advantage - 0.6 * jnp.tanh(d * advantage / 0.6))
    return -(ratio * advantage - jnp.where(advantage >= 0, gain, loss))


# --- an environment ---------------------------------------------------------------------------------------------------


class Corridor:
    """Walk right five times: reward 1 at the end, 0 before. Observations are positions, one-hot; 20 steps at most."""

    default_params = None

    def reset(self, key, params):
        return jax.nn.one_hot(0, 6), (jnp.int32(0), jnp.int32(0))

    def step(self, key, state, action, params):
        place, time = jnp.clip(state[0] + 2 * action - 1, 0, 5), state[1] + 1
        obs, reached, late = jax.nn.one_hot(place, 6), place == 5, time >= 20
        fresh = self.reset(key, params)
        done = reached | late
        next_obs, next_state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, (obs, (place, time)))
        return next_obs, next_state, reached.astype(jnp.float32), reached, late, {"final_observation": obs}

    def action_space(self, params):
        from gymnax.environments.spaces import Discrete

        return Discrete(2)


# --- a network --------------------------------------------------------------------------------------------------------


def bilinear(num_actions, width):
    """Return a network of plain functions and arrays: a random embedding below a linear policy and value."""

    def init(key, obs):
        keys = jax.random.split(key, 2)
        return {
            "embedding": jax.random.normal(keys[0], (obs.shape[-1], width)),
            "policy": 0.01 * jax.random.normal(keys[1], (width, num_actions)),
            "value": jnp.zeros(width),
        }

    def apply(params, carry, obs, first):
        features = jnp.tanh(obs @ params["embedding"])
        return Outputs(Categorical(features @ params["policy"]), features @ params["value"]), carry

    return Network(init, apply)


def reached(**objects):
    """Return the mean return of 128 episodes in the corridor after training."""
    train = purerl.make_train(CFG, env=Corridor(), **objects)
    run = jax.jit(lambda key: train.evaluate(train(key).state, key, max_steps=20).returns.mean())
    return run(KEY)


@pytest.mark.slow
def test_custom_environment_is_learnt():
    assert reached() > 0.99


@pytest.mark.slow
def test_custom_advantage_estimator_learns():
    assert reached(advantage=clipped_gae) > 0.99


@pytest.mark.slow
def test_custom_policy_loss_learns():
    assert reached(policy_loss=drift_loss) > 0.99


def test_policy_loss_that_reads_only_the_old_policy_warns():
    with pytest.warns(UserWarning, match="policy_loss: does not depend on the parameters or on"):
        purerl.make_train(CFG, env=Corridor(), policy_loss=lambda new, old, advantage, cfg: -advantage * old.log_prob)


@pytest.mark.parametrize("cfg", [purerl.DAACConfig(), purerl.PPGConfig(e_v=2), purerl.PPOConfig()])
def test_extra_loss_of_groups_that_another_phase_trains_warns(cfg):
    sizes = {name: getattr(CFG, name) for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "hidden")}
    make = lambda loss: purerl.make_train(cfg.replace(**sizes), env=Corridor(), extra_loss=loss)
    make(lambda params, new, old, cfg: (new.policy.entropy().mean(), {}))
    of_value = lambda params, new, old, cfg: (jnp.square(new.value).mean(), {})
    if isinstance(cfg, purerl.PPOConfig):
        make(of_value)
    else:
        with pytest.warns(UserWarning, match="extra_loss: reads the groups value, but its phase 'policy' trains"):
            make(of_value)


def test_extra_loss_that_reads_only_old_data_warns():
    with pytest.warns(UserWarning, match="extra_loss: does not depend on the parameters"):
        purerl.make_train(CFG, env=Corridor(), extra_loss=lambda params, new, old, cfg: (old.log_prob.mean(), {}))


def test_custom_network_learns():
    assert reached(network=bilinear(2, 32)) > 0.99
    params = purerl.make_train(CFG, env=Corridor(), network=bilinear(2, 32)).init(KEY).params
    assert set(params) == {"embedding", "policy", "value"}


@pytest.mark.slow
def test_custom_parts_can_be_swept():
    sweep = jax.vmap(lambda lr: CFG.replace(lr=lr, total_timesteps=512))(jnp.array([1e-3, 1e-2]))
    run = lambda cfg: purerl.make_train(
        cfg, env=Corridor(), advantage=clipped_gae, policy_loss=drift_loss, network=bilinear(2, 8)
    )(KEY)
    result = jax.jit(jax.vmap(run))(sweep)
    assert not np.allclose(*result.state.params["policy"])


def test_custom_parts_take_fewer_than_thirty_lines():
    for part in (clipped_gae, drift_loss, Corridor, bilinear):
        assert len(inspect.getsource(part).splitlines()) < 30, part


# --- numbers of low precision -----------------------------------------------------------------------------------------


def test_low_precision_results_of_user_code_become_float32():
    """Rewards, advantages, losses and bounds are float32, whatever the precision of the user's code."""
    half, seen = lambda x: x.astype(jnp.bfloat16), {}

    def advantage(steps, cfg):
        seen["reward"] = steps.reward.dtype
        return jax.tree.map(half, purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda))

    def measure(state, batch):
        seen.update(advantage=batch.steps.advantage.dtype, target=batch.steps.target.dtype)
        return {}

    objects = {
        "reward_shaper": lambda reward, steps: half(reward),
        "intrinsic": (lambda key, obs: jnp.float32(0), lambda state, steps: (half(steps.reward), state)),
    }
    train = purerl.make_train(CFG, env=probes.Varied(), advantage=advantage, measure=measure, **objects)
    jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
    loss = guard_loss_shape(lambda outputs, old, advantage, cfg: half(outputs * advantage))
    seen["loss"] = jax.eval_shape(loss, *(jax.ShapeDtypeStruct((2, 3), jnp.float32),) * 3, CFG).dtype
    doubles = simulator.simulator._replace(action_space=purerl.Box(np.full(2, -1.0), np.full(2, 1.0)))
    seen["bounds"] = purerl.make_train(CFG, env=doubles).env.action_space.high.dtype
    assert seen == dict.fromkeys(("reward", "advantage", "target", "loss", "bounds"), np.dtype(np.float32))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1e-3),
        optax.multi_transform({"a": optax.adam(1e-3), "b": optax.adam(1e-2)}, {"policy": "a", "value": "b"}),
        optax.adam(optax.linear_schedule(0.0, 1e-3, 100)),
        optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation(),
        optax.MultiSteps(optax.adam(1e-3), 16).gradient_transformation(),
        optax.adam(lambda step: jnp.where(step < 100, 0.0, 1e-3)),
        optax.multi_transform(
            {"head": optax.adam(1e-3), "body": optax.adam(1e-3)},
            lambda params: jax.tree_util.tree_map_with_path(
                lambda path, _: "head" if "Linear" in jax.tree_util.keystr(path) else "body", params
            ),
        ),
        optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params)),
    ],
)
def test_optimizers_with_their_own_learning_rate_are_refused(optimizer):
    with pytest.raises(purerl.ConfigError, match="already applies a learning rate"):
        purerl.make_train(CFG, optimizer=optimizer)


def test_optimizer_that_labels_layers_is_tried_on_layers():
    params = purerl.make_train(CFG).init(KEY).params
    labels = jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "vector", params)
    parts = {"matrix": optax.scale_by_adam(), "vector": optax.identity()}
    purerl.make_train(CFG, optimizer=optax.multi_transform(parts, labels))
    with pytest.raises(purerl.ConfigError, match="already applies a learning rate"):
        purerl.make_train(CFG, optimizer=optax.multi_transform({**parts, "matrix": optax.adam(1e-3)}, labels))


def test_optimizer_of_unknown_sign_warns():
    with pytest.warns(UserWarning, match="its sign is unknown"):
        purerl.make_train(CFG, optimizer=optax.MultiSteps(optax.adam(1e-3), 1000).gradient_transformation())
    purerl.make_train(CFG, optimizer=optax.chain(optax.scale_by_adam(), optax.add_noise(1.0, 0.55, 0)))
    sweep = lambda b1: purerl.make_train(CFG, optimizer=optax.scale_by_adam(b1=b1)).init(KEY).params
    jax.vmap(sweep)(jnp.array([0.8, 0.9]))  # a traced hyperparameter cannot be tried, and causes no warning


def test_negative_learning_rates_are_refused():
    with pytest.raises(purerl.ConfigError, match=r"lr_schedule = -0\.001.*: at gradient step 1 of 1,264, must be at least 0"):
        purerl.make_train(CFG, lr_schedule=lambda step: jnp.where(step < 1, 0.0, -1e-3))
    with pytest.raises(purerl.ConfigError, match=r"lr_schedule = -.*: at gradient step .* must be .* count gradient steps"):
        purerl.make_train(CFG, lr_schedule=lambda step: 1e-3 * (1 - step / 79))  # a schedule in updates
    purerl.make_train(CFG, lr_schedule=lambda step: 3e-4 * (1 - step / 1264))  # 0 after the last step
    with pytest.warns(
        UserWarning,
        match=r"lr_schedule = 0\.0: is 0 in the second half of the 1,264 gradient steps; schedules count gradient steps",
    ):
        purerl.make_train(CFG, lr_schedule=optax.linear_schedule(1e-3, 0.0, 79))
    ppg = purerl.PPGConfig(total_timesteps=64 * 1024, num_envs=8, num_steps=32)
    last = purerl.make_train(ppg).plan.phases[0].gradient_steps  # fewer than those of the auxiliary phase
    purerl.make_train(ppg, lr_schedule=lambda step: 3e-4 * (1 - step / last))


def test_optimizers_of_groups_without_a_learning_rate_are_accepted():
    parts = {"a": optax.scale_by_adam(), "b": optax.scale_by_rms()}
    purerl.make_train(CFG, optimizer=optax.multi_transform(parts, {"policy": "a", "value": "b"}))
