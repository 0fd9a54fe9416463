"""No field is silently without effect: another value changes the program, is refused, or is named in a warning."""

import dataclasses
import math
import warnings

import jax
import numpy as np
import pytest

import purerl
from purerl.config.algorithms import ALGORITHMS
from purerl.config.fields import is_float_leaf
from tests.helpers.probes import Varied, acting

SMALL = {"total_timesteps": 256, "num_envs": 4, "num_steps": 8, "num_minibatches": 2, "hidden": (8,)}
BASES = {
    "ppo": purerl.PPOConfig(**SMALL),
    "ppg": purerl.PPGConfig(**SMALL, n_pi=2),
    "daac": purerl.DAACConfig(**SMALL, e_v=2),
    "appo": purerl.APPOConfig(**SMALL),
    "rnd": purerl.PPOConfig(**SMALL, rnd=purerl.RNDConfig(init_steps=32, features=4, hidden=(4,))),
}
OTHERS = {  # values for fields that no rule covers
    "env": "Pendulum-v1",
    "env_kwargs": (("size", 5),),
    "env_params": {"max_steps_in_episode": 3},
    "randomize": {"gravity": purerl.Uniform(8, 12)},
    "total_timesteps": 512,
    "num_minibatches": 4,
    "warmup_steps": 64,
    "learning_starts": 64,
    "hidden": (4,),
    "memory_inputs": ("action",),
    "sequence_length": 4,
    "info": ("distance",),
    "normalize_entries": ("distance",),
    "action_mask": "legal",
    "critic_obs": "secret",
    "rnd": purerl.RNDConfig(init_steps=32, features=4, hidden=(4,)),
    "normalize_obs": True,
    "normalize_reward": True,
    "minibatches": "env",
    "torso": "cnn",
    "aux_columns": 8,
    "metrics_every": 2,
    "kernels": "fused",
}


def another(field, value):
    """Return a valid value of a field that differs from its current value."""
    if field.name in OTHERS and OTHERS[field.name] != value:
        return OTHERS[field.name]
    if choices := field.metadata["rule"].choices:
        return next(choice for choice in choices if choice not in (value, "auto"))
    if isinstance(value, bool) or field.type in (bool, bool | str):
        return value is not True
    if is_float_leaf(field):
        return next(x for x in (0.37, 1.37, 2.37) if x != value and field.metadata["rule"].holds(x))
    return value + 1 if isinstance(value, int) else (3,)


def program(cfg, env):
    """Return the traced program of a run and its warnings, or the text of a refusal."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train = purerl.make_train(cfg, env=env)
            text = str(jax.make_jaxpr(train)(jax.random.key(0)))
        except purerl.ConfigError as error:
            text = str(error)
    return text, "\n".join(str(warning.message) for warning in caught)


def swept_fields(name, shared):
    """Return the fields that an algorithm shares with PPO, or its own fields."""
    base = BASES[name]
    part = base.rnd if name == "rnd" else base
    with_ppo = {field.name for field in dataclasses.fields(purerl.PPOConfig)} if name != "rnd" else set()
    return base, part, [field for field in dataclasses.fields(part) if (field.name in with_ppo) == shared]


SHARED = [pytest.param(name, True, marks=pytest.mark.long) for name in ALGORITHMS]
OWN = [pytest.param(name, False, marks=pytest.mark.slow) for name in BASES if name != "ppo"]


@pytest.mark.each_landing("daac-False")
@pytest.mark.parametrize(("name", "shared"), SHARED + OWN)
def test_changed_field_changes_the_program_or_warns(name, shared):
    base, part, fields = swept_fields(name, shared)
    before, said = program(base, Varied())
    assert not said
    silent = []
    for field in fields:
        changed = part.replace(**{field.name: another(field, getattr(part, field.name))})
        env = None if field.name in ("env", "env_kwargs") else Varied()  # an object would replace these fields
        cfg = base.replace(rnd=changed) if name == "rnd" else changed
        if field.name == "env_kwargs":
            cfg = cfg.replace(env="DeepSea-bsuite")
        text, said = program(cfg, env)
        if text == before and field.name not in said:
            silent.append(field.name)
    assert not silent


def test_one_warning_names_every_field_without_effect_and_its_condition():
    cfg = purerl.PPOConfig(reward_clip=1.0, weight_decay=0.1, memory_size=3, lr_power=2.0, log_std_init=1.0)
    with pytest.warns(UserWarning, match="fields without effect") as caught:
        purerl.make_train(cfg)
    (warning,) = caught
    text = str(warning.message)
    for field, switch in {
        "reward_clip = 1.0": "normalize_reward = True",
        "weight_decay = 0.1": "optimizer = 'adamw'",
        "memory_size = 3": "memory = 'gru' or 'lstm'",
        "lr_power = 2.0": "lr_schedule = 'polynomial'",
        "log_std_init = 1.0": "continuous actions (a Box)",
    }.items():
        assert f"{field}: has no effect without {switch}" in text
    with pytest.warns(UserWarning, match=r"hidden = \(8,\): has no effect, since network= replaces this field"):
        purerl.make_train(purerl.PPOConfig(hidden=(8,)), network=purerl.make_train(purerl.PPOConfig()).network)


@pytest.mark.filterwarnings("error:fields without effect")
def test_fields_that_are_read_or_traced_do_not_warn():
    purerl.make_train(purerl.PPOConfig(normalize_reward=True, reward_clip=1.0, memory="gru", memory_size=8, num_minibatches=2))
    purerl.make_train(purerl.PPOConfig(env="Pendulum-v1", reward_clip=1.0))  # continuous actions normalise rewards
    jax.eval_shape(lambda x: purerl.make_train(purerl.PPOConfig(reward_clip=x)).cfg.gamma, 1.0)
    cfg = purerl.make_train(purerl.PPOConfig(env="Pendulum-v1", normalize_reward=False)).cfg
    purerl.make_train(cfg)  # already resolved, as from a checkpoint
    network = purerl.make_train(purerl.PPOConfig(memory="gru", memory_inputs=("action",), num_minibatches=2)).network
    purerl.make_train(purerl.PPOConfig(memory_inputs=("action",), num_minibatches=2), network=network)
    # PPG's auxiliary phase has the config's schedule.
    purerl.make_train(purerl.PPGConfig(lr_schedule="linear", lr_final=0.1), lr_schedule=lambda step: 1e-3)


@pytest.mark.parametrize(("each", "then"), [("minibatch", "never changes"), ("epoch", "only rises")])
def test_adaptive_learning_rate_with_one_minibatch_warns(each, then):
    cfg = purerl.PPOConfig(lr_schedule="kl_adaptive", lr_kl_every=each, num_epochs=1, num_minibatches=1)
    with pytest.warns(UserWarning, match=f"the rate {then}"):
        purerl.make_train(cfg)


# --- defaults by action space -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_follow_the_action_space(name):
    cls = ALGORITHMS[name]
    discrete = purerl.make_train(cls(), env=Varied()).cfg
    box = purerl.make_train(cls(), env=acting(Varied, "box")()).cfg
    own = (
        cls(normalize_reward=True).normalize_reward is cls().normalize_reward
    )  # PPG and DAAC scale rewards, whatever the actions
    assert (discrete.normalize_obs, discrete.normalize_reward) == (False, own)
    assert (box.normalize_obs, box.normalize_reward) == (True, True)
    assert (float(discrete.ent_coef), float(box.ent_coef)) == (float(np.float32(0.01)), 0.0)
    assert (float(discrete.reward_clip), float(box.reward_clip)) == (10.0 if own else math.inf, 10.0)
    assert box.value_clip == discrete.value_clip == ("none" if name == "ppg" else "max")


def test_auto_is_shown_as_text_and_stored_as_a_number():
    cfg = purerl.PPOConfig()
    assert cfg == purerl.PPOConfig(ent_coef="auto", reward_clip="auto") == cfg.replace(ent_coef="auto")
    assert "ent_coef='auto'" in repr(cfg)
    assert '"ent_coef": "auto"' in cfg.to_json()
    assert purerl.PPOConfig.from_json(cfg.to_json()) == cfg
    sweep = jax.vmap(lambda lr: cfg.replace(lr=lr))(np.float32([1e-3, 1e-4]))
    purerl.validate(sweep)
    assert purerl.PPOConfig.from_json(sweep.to_json()).ent_coef.tolist() == [-math.inf] * 2


@pytest.mark.slow
def test_swept_and_traced_configs_resolve_the_same_defaults():
    cfg = purerl.PPOConfig(**{**SMALL, "total_timesteps": 64})
    env = acting(Varied, "box")()
    run = lambda cfg: purerl.make_train(cfg, env=env)(jax.random.key(0)).metrics["loss"].total
    alone = jax.jit(lambda: run(cfg))()
    floats = jax.tree.map(np.float32, cfg)
    np.testing.assert_allclose(jax.jit(run)(floats), alone, rtol=1e-5)
    swept = jax.vmap(lambda gamma: cfg.replace(gamma=gamma))(np.float32([0.99, 0.9]))
    np.testing.assert_allclose(jax.jit(jax.vmap(run))(swept)[0], alone, rtol=1e-5)
    fitted = purerl.fit(cfg, env=env)
    assert fitted.run.cfg.ent_coef == 0.0
    assert fitted.run.cfg.normalize_obs is True
