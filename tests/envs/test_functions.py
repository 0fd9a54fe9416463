import collections

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.core.spaces import Discrete
from purerl.envs import suites

RUNNABLE = [name for name in gymnax.registered_envs if name != "MNISTBandit-bsuite"]  # MNISTBandit downloads its data


EVERY_TIME = {"CartPole-v1", "DeepSea-bsuite"}  # one for each kind of observation and action


@pytest.mark.each_landing("Catch-bsuite")
@pytest.mark.parametrize(
    "env_id", [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE]
)
def test_default_config_updates_every_gymnax_environment(env_id):
    """The ratio is 1 before the first gradient step, results are finite, and dtypes are kept."""
    cfg = PPOConfig(env=env_id)
    with jax.numpy_rank_promotion("allow"):  # some of gymnax's environments rely on it
        first_update = jax.jit(lambda cfg, key: purerl.make_train(cfg).update(purerl.make_train(cfg).init(key)))
        # With a learning rate of 0 the policy stays the acting policy: no ratio may leave 1 by more than 1e-5.
        _, still = first_update(cfg.replace(lr=0.0, clip_eps=1e-5), jax.random.key(0))
        after, metrics = first_update(cfg, jax.random.key(0))
        state = jax.eval_shape(purerl.make_train(cfg).init, jax.random.key(0))
    assert still["clip_fraction"].total == 0
    assert still["clip_fraction"].count == 16
    kind = lambda x: (x.dtype, x.shape, getattr(x, "weak_type", False))
    for before, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert kind(leaf) == kind(before)
    floats = [x for x in jax.tree.leaves((after, metrics)) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert all(x.dtype == jnp.float32 and np.isfinite(x).all() for x in floats)
    given = jax.eval_shape(gymnax.make(env_id)[0].reset, jax.random.key(0))[0]
    assert after.actor.obs.dtype == given.dtype  # the environment's dtype is kept; the network casts


class Bare:
    """An environment with episodes of one step and numbers as observations."""

    action_space = Discrete(2)
    observed = jnp.int32(1)

    def reset(self, key):
        return jnp.float32(0), self.observed

    def step(self, key, state, action):
        return state, self.observed, jnp.float32(1), jnp.bool_(True), jnp.bool_(False), {"key": key}


def test_wrap_env_refuses_invalid_declared_spaces():
    class Shifted(Bare):
        action_space = gymnasium.spaces.Discrete(2, start=1)

    class Half(Bare):
        observation_space, observed = Discrete(3), jnp.float32(0.5)

    purerl.wrap_env(Bare())  # a key in `info` is accepted, since nothing reads it
    for made, says in ((Shifted(), "must start at 0"), (Half(), "must be an integer scalar")):
        with pytest.raises(ConfigError, match=says):
            purerl.wrap_env(made)


def test_dicts_of_all_kinds_are_normalised():
    shown = collections.OrderedDict(speed=jnp.zeros(2), angle=collections.OrderedDict(z=jnp.ones(1), a=jnp.ones(1)))
    env = purerl.wrap_env(type("Ordered", (Bare,), {"observed": shown})())
    train = purerl.make_train(PPOConfig(total_timesteps=64, num_envs=4, num_steps=8, hidden=(4,), normalize_obs=True), env=env)
    state, _ = jax.eval_shape(train.update, jax.eval_shape(train.init, jax.random.key(0)))
    assert type(state.actor.obs) is type(state.actor.obs["angle"]) is dict


def test_observations_that_are_not_numbers_are_refused():
    for observed in (jnp.zeros(2, jnp.complex64), {"x": jnp.zeros(2), "key": jax.random.key(0)}):
        with pytest.raises(ConfigError, match="observations must be bools, integers or floats"):
            purerl.wrap_env(type("Strange", (Bare,), {"observed": observed})())


def test_names_of_one_type_are_needed_where_names_are_added_or_sorted():
    env = purerl.wrap_env(type("Numbered", (Bare,), {"observed": {0: jnp.zeros(2)}})())
    with pytest.raises(ConfigError, match=r"memory_inputs = .*needs a dict of observations whose keys are strings"):
        purerl.make_train(PPOConfig(memory="gru", memory_inputs=("reward",)), env=env)
    with pytest.raises(ConfigError, match="the names of the parts of an action must be of one type"):
        purerl.wrap_env(type("Numbered", (Bare,), {"action_space": purerl.Mixed({"a": Discrete(2), 1: Discrete(2)})})())


def test_info_that_is_not_a_dict_is_named():
    class Silent(Bare):
        def step(self, key, state, action):
            return *super().step(key, state, action)[:-1], None

    with pytest.raises(ConfigError, match=r"env.step: info must be a dict, such as \{\}, not a NoneType"):
        purerl.wrap_env(Silent())


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (gymnasium.spaces.Dict({"x": gymnasium.spaces.Discrete(5)}), {"y": jnp.int32(0)}),
        (gymnasium.spaces.Dict({"x": gymnasium.spaces.Discrete(5, start=1)}), {"x": jnp.int32(1)}),
        (gymnasium.spaces.Dict({"x": gymnasium.spaces.Discrete(5)}), {"x": jnp.float32(1)}),
        ((Discrete(5),), (jnp.int32(0), jnp.int32(0))),
        ((Discrete(5),), {"x": jnp.int32(0)}),
        (Discrete(0), jnp.int32(0)),
        (purerl.Indices((3, -4), (2,)), jnp.zeros(2, jnp.int32)),
    ],
)
def test_wrap_env_refuses_spaces_unlike_the_observations(declared, observed):
    other = type("Other", (Bare,), {"observation_space": declared, "observed": observed})
    with pytest.raises(ConfigError, match="observation_space"):
        purerl.wrap_env(other())


def test_gymnasium_spaces_declare_categorical_observations():
    five = gymnasium.spaces.Discrete(5)
    other = type("Other", (Bare,), {"observation_space": gymnasium.spaces.Tuple((five, five)), "observed": (jnp.int32(0),) * 2})
    assert purerl.wrap_env(other()).observation_space == (Discrete(5), Discrete(5))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_steps": 0}, "env.max_steps"),
        ({"max_steps": 2.5}, "env.max_steps"),
        ({"action_space": purerl.Box(1.0, -1.0)}, "env"),
        ({"action_space": Discrete(0)}, "env"),
        ({"observation_space": {"x": jax.ShapeDtypeStruct((2,), jnp.float32)}}, "env.observation_space"),
        ({"observation_space": (jax.ShapeDtypeStruct((2,), jnp.float32),)}, "env.observation_space"),
    ],
)
def test_make_train_checks_environments_of_the_protocol(change, field):
    made = purerl.wrap_env(type("Other", (Bare,), {"observed": jnp.zeros(2)})())
    with pytest.raises(ConfigError) as error:
        purerl.make_train(purerl.PPOConfig(), env=made._replace(**change))
    assert error.value.problems[0].field == field


def test_invalid_arguments_of_evaluate_and_check_env_are_refused():
    train = purerl.make_train(purerl.PPOConfig(hidden=(4,)))
    state = train.init(jax.random.key(0))
    wrong = (
        {"max_steps": 0},
        {"max_steps": "x"},
        {"env_params": 5},
        {"env_params": {"gravity": "a"}},
        {"env_params": {"gravity": None}},
    )
    for arguments in wrong:
        with pytest.raises(ConfigError):
            train.evaluate(state, jax.random.key(0), 4, **arguments)
    for arguments in ({"num_steps": -1}, {"num_steps": "a"}, {"num_envs": 2.5}):
        with pytest.raises(ConfigError, match="must be an int of at least"):
            purerl.check_env("CartPole-v1", **arguments)
    with pytest.raises(ConfigError, match="must be of type EnvParams"):
        purerl.make_train(purerl.PPOConfig(), env_params={"gravity": 1.0})
    with pytest.raises(ConfigError, match="is a single gymnasium environment"):
        purerl.wrap_env(gymnasium.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="gymnax ids have no prefix"):
        purerl.make_train(purerl.PPOConfig(env="gymnax/CartPole-v1"))


def test_bounds_at_the_largest_float_count_as_infinite():
    widest = purerl.Box(*(sign * np.finfo(np.float32).max for sign in (-1, 1)))
    other = type("Other", (Bare,), {"action_space": widest})()
    with pytest.raises(ConfigError, match="needs finite action bounds"):
        purerl.make_train(purerl.PPOConfig(action_distribution="tanh"), env=purerl.wrap_env(other))


@pytest.mark.long
@pytest.mark.slow
def test_evaluation_resets_with_other_keys_than_training():
    train = purerl.make_train(purerl.PPOConfig(hidden=(4,), num_envs=8))
    seen = []
    watched = train.env._replace(reset=lambda keys: (seen.append(jax.random.key_data(keys)), train.env.reset(keys))[1])
    other = purerl.make_train(train.cfg, env=watched)
    state = jax.jit(train.init)(jax.random.key(0))
    with jax.disable_jit():
        other.init(jax.random.key(0)), other.evaluate(state, jax.random.key(0), 8, max_steps=1)
    begun = [{tuple(row) for row in np.asarray(keys).tolist()} for keys in seen if not isinstance(keys, jax.core.Tracer)]
    assert len(begun) == 2
    assert not begun[0] & begun[1]


def test_suite_imported_inside_a_trace_holds_no_tracers(monkeypatch):
    """Modules of libraries make arrays; if these arrays were tracers, later programs of the process would fail."""
    made = []

    def imports(x):
        with monkeypatch.context() as patched:
            patched.setattr(suites.importlib, "import_module", lambda name: made.append(jnp.arange(3)))
            suites._import_adapter("gymnax")
        return x

    jax.jit(imports).trace(0.0)
    assert not isinstance(made[0], jax.core.Tracer)


class Privileged:
    """An environment with two numbers from a robot's sensors, and five that only the simulator knows."""

    action_space, max_steps = purerl.Discrete(2), 5

    def reset(self, key):
        return jnp.int32(0), {"state": jnp.ones(2), "privileged_state": jnp.ones(5)}

    def step(self, key, state, action):
        return *self.reset(key), jnp.float32(1), False, False, {}


def read_by(cfg, env):
    """Count the numbers of an observation that each network reads."""
    params = jax.eval_shape(purerl.make_train(cfg, env=env).init, jax.random.key(0)).params
    return {group: max(x.shape[0] for x in jax.tree.leaves(params[group]) if x.ndim == 2) for group in ("policy", "value")}


def test_only_the_value_network_reads_privileged_observations():
    env = purerl.wrap_env(Privileged())._replace(critic_obs="privileged_state")
    cfg = PPOConfig(hidden=())
    assert read_by(cfg, env) == {"policy": 2, "value": 7}
    assert read_by(cfg.replace(critic_obs=""), env) == {"policy": 7, "value": 7}
    assert read_by(cfg, env._replace(critic_obs="")) == {"policy": 7, "value": 7}
    with pytest.raises(purerl.ConfigError, match="shows the policy 'privileged_state', which only the value network may see"):
        purerl.make_train(cfg.replace(arch="shared"), env=env)


def test_counts_in_attributes_of_an_environment_warn():
    class Counted(Bare):
        def reset(self, key):
            self.time = 0
            return super().reset(key)

        def step(self, key, state, action):
            self.time += 1
            return state, self.observed, jnp.float32(0), False, self.time >= 10, {}

    with pytest.warns(UserWarning, match="step changes its time once, while it is traced, and never again"):
        purerl.wrap_env(Counted(), max_steps=20)
