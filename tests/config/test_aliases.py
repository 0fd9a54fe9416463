"""The table of other libraries' names (`purerl/config/names.csv`): every name resolves, and scripts port by the table."""

import dataclasses
import functools
import importlib
import inspect
import math
import re

import jax
import pytest

import purerl
from purerl import cli
from purerl.config import aliases
from purerl.config.fields import is_float_leaf
from tests.helpers.probes import Rich, Varied, acting
from tests.helpers.tiny import CFG, digest

ROWS = aliases.rows()
FIELDS = sorted({row["purerl"].removeprefix("cfg.") for row in ROWS if row["purerl"].startswith("cfg.")})

# For each field, a new value, and the other fields that must be set so that it has an effect.
POLYNOMIAL, ADAPTIVE = {"lr_schedule": "polynomial"}, {"lr_schedule": "kl_adaptive", "desired_kl": 1e-4}
CHANGES = {
    "adam_eps": (1.0, {}),
    "clip_eps": (1e-4, {}),
    "critic_lr_scale": (0.5, {}),
    "desired_kl": (10.0, ADAPTIVE),
    "ent_coef": (1.0, {}),
    "gae_lambda": (0.1, {}),
    "gamma": (0.1, {}),
    "kl_coef": (5.0, {"kl_penalty": "fixed", "num_minibatches": 8}),
    "kl_stop": ("epoch", {"target_kl": 2.5e-3, "lr": 1e-2, "num_minibatches": 8, "num_epochs": 4}),
    "log_std_init": (1.0, {}),
    "log_std_min": (0.0, {}),
    "lr": (1e-2, {}),
    "lr_final": (1e-4, POLYNOMIAL),
    "lr_kl_factor": (5.0, ADAPTIVE),
    "lr_max": (3e-4, ADAPTIVE | {"desired_kl": 10.0}),
    "lr_min": (2e-4, ADAPTIVE | {"desired_kl": 1e-9, "num_minibatches": 8}),
    "lr_kl_tolerance": (1e6, ADAPTIVE),
    "max_grad_norm": (1e-3, {}),
    "obs_clip": (0.1, {"normalize_obs": True}),
    "reward_clip": (1e-3, {"normalize_reward": True}),
    "target_kl": (1e-9, {}),
    "value_clip_eps": (1e-3, {}),
    "vf_coef": (5.0, {}),
    "weight_decay": (10.0, {"optimizer": "adamw"}),
}
# Fields that do not change the state after one update, and functions that show their effect.
ELSEWHERE = {
    "env": lambda value: purerl.make_train(purerl.PPOConfig(env=value)).env.action_space,
    "total_timesteps": lambda value: purerl.make_train(CFG.replace(total_timesteps=value), env=Varied()).plan.num_updates,
    "env_params": lambda value: purerl.make_train(purerl.PPOConfig(env_params=value)).env.max_steps,
    "torso": lambda value: purerl.make_train(purerl.PPOConfig(env="Breakout-MinAtar", torso=value)).plan.parameters,
    "info": lambda value: set(jax.eval_shape(*one_update(CFG.replace(info=value), "rich"))[1]),
}
ELSEWHERE_VALUES = {
    "env": ("CartPole-v1", "Pendulum-v1"),
    "env_params": ({}, {"max_steps_in_episode": 7}),
    "torso": ("mlp", "cnn"),
    "total_timesteps": (64, 128),
    "info": ((), ("illegal",)),
}
ENVS = {"critic_obs": "rich", "action_distribution": "box", "log_std_init": "box", "log_std_min": "box"}
MADE = {"plain": Varied, "box": acting(Varied, "box"), "rich": Rich}


def one_update(cfg, env):
    train = purerl.make_train(cfg, env=MADE[env]())
    return lambda key: train.update(train.init(key)), jax.random.key(0)


@functools.partial(jax.jit, static_argnums=1)
def updated(cfg, env):
    function, key = one_update(cfg, env)
    return function(key)[0]


@functools.cache
def state_after(changes, env):
    base = CFG.replace(max_grad_norm=math.inf, num_epochs=2)
    floats = {f.name: float(getattr(base, f.name)) for f in dataclasses.fields(base) if is_float_leaf(f)}
    return digest(updated(base.replace(**floats | dict(changes)), env))


# Floats share one program. `integration/test_settings.py` checks that every other field changes the program.
TRIED = sorted({"kl_stop", *ELSEWHERE, *(f.name for f in dataclasses.fields(CFG) if is_float_leaf(f))} & set(FIELDS))


@pytest.mark.slow
@pytest.mark.each_landing("kl_coef", "log_std_init")
@pytest.mark.parametrize("name", TRIED)
def test_every_field_in_the_table_has_an_effect(name):
    if name in ELSEWHERE:
        values = ELSEWHERE_VALUES[name]
        assert ELSEWHERE[name](values[0]) != ELSEWHERE[name](values[1])
        return
    value, needs = CHANGES[name]
    env = ENVS.get(name, "plain")
    off, on = tuple(needs.items()), tuple({**needs, name: value}.items())
    assert state_after(off, env) != state_after(on, env)


def resolve(says):
    """Return the object that an entry of the table names."""
    if match := re.fullmatch(r"(make_train|fit)\((\w+)=\)", says):
        parameters = {**inspect.signature(purerl.fit).parameters, **inspect.signature(purerl.make_train).parameters}
        own = inspect.signature(getattr(purerl, match[1])).parameters
        return own[match[2]] if match[1] == "make_train" else parameters[match[2]]
    if says.startswith("cfg."):
        return purerl.PPOConfig.__dataclass_fields__[says.removeprefix("cfg.")]
    if says.split(".")[0] in dir(purerl):
        return functools.reduce(getattr, says.split("."), purerl)
    module, name = says.rsplit(".", 1)
    return getattr(importlib.import_module(f"purerl.{module}"), name)


def test_every_name_resolves_or_has_a_note():
    for row in ROWS:
        if row["purerl"] in ("Train.init", "Train.update"):  # attributes made for each run
            continue
        assert row["purerl"] or row["note"], row
        if row["purerl"]:
            assert resolve(row["purerl"]) is not None, row


def test_names_are_unique_per_library():
    names = [(row["system"], row["name"]) for row in ROWS]
    assert len(names) == len(set(names))
    trainers = {"purejaxrl", "rejax", "Stable-Baselines3", "CleanRL"}
    trainers |= {"rlib", "MetaBox", "rllte", "skrl", "UniLab", "brax", "rsl_rl", "RLlib", "rl_games"}
    assert {system for system, _ in names} == trainers


# The hyperparameters of scripts for other trainers, and the configs that their tables make of them.
SCRIPTS = {
    "purejaxrl": (
        {
            **{"ENV_NAME": "CartPole-v1", "LR": 1e-3, "NUM_ENVS": 8, "NUM_STEPS": 64, "TOTAL_TIMESTEPS": 1e5},
            **{"UPDATE_EPOCHS": 2, "NUM_MINIBATCHES": 8, "GAMMA": 0.98, "GAE_LAMBDA": 0.9, "CLIP_EPS": 0.1, "ENT_COEF": 0.0},
            **{"VF_COEF": 0.5, "MAX_GRAD_NORM": 1.0, "ACTIVATION": "relu", "ANNEAL_LR": False, "DEBUG": True},
        },
        purerl.PPOConfig(
            **{"env": "CartPole-v1", "lr": 1e-3, "num_envs": 8, "num_steps": 64, "total_timesteps": 1e5},
            **{"num_epochs": 2, "num_minibatches": 8, "gamma": 0.98, "gae_lambda": 0.9, "clip_eps": 0.1, "value_clip_eps": 0.1},
            **{"ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 1.0, "activation": "relu", "lr_schedule": "constant"},
        ),
    ),
    "Stable-Baselines3": (
        {
            **{"policy": "MlpPolicy", "env": "CartPole-v1", "n_envs": 8, "learning_rate": 1e-3, "n_steps": 32, "batch_size": 64},
            **{"n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.0},
            **{"vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": 0.02, "normalize_advantage": True, "total_timesteps": 1e5},
            **{"net_arch": [64, 64], "verbose": 1},
        },
        purerl.PPOConfig(
            **{"torso": "mlp", "env": "CartPole-v1", "num_envs": 8, "lr": 1e-3, "lr_schedule": "constant", "num_steps": 32},
            **{"num_minibatches": 8 * 32 // 64, "num_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "clip_eps": 0.2},
            **{"value_clip": "none", "ent_coef": 0.0, "vf_coef": 2 * 0.5, "max_grad_norm": 0.5, "target_kl": 1.5 * 0.02},
            **{"advantage_norm": "minibatch", "total_timesteps": 1e5, "hidden": (64, 64)},
        ),
    ),
    "brax": (
        {
            **{"environment": "CartPole-v1", "num_timesteps": 1e5, "num_envs": 8, "unroll_length": 16, "batch_size": 4},
            **{
                "num_minibatches": 8,
                "num_updates_per_batch": 2,
                "learning_rate": 1e-3,
                "entropy_cost": 1e-3,
                "discounting": 0.97,
            },
            **{"clipping_epsilon": 0.3, "normalize_observations": True, "policy_hidden_layer_sizes": (32, 32), "seed": 1},
        },
        purerl.PPOConfig(
            **{"env": "CartPole-v1", "total_timesteps": 1e5, "num_envs": 8, "num_steps": 16 * 4 * 8 // 8, "num_minibatches": 8},
            **{"num_epochs": 2, "lr": 1e-3, "lr_schedule": "constant", "ent_coef": 1e-3, "gamma": 0.97, "clip_eps": 0.3},
            **{"value_clip": "none", "normalize_obs": True, "obs_clip": math.inf, "hidden": (32, 32)},
        ),
    ),
    "rsl_rl": (
        {
            **{"task": "CartPole-v1", "num_envs": 8, "num_steps_per_env": 32, "max_iterations": 391, "num_mini_batches": 4},
            **{"num_learning_epochs": 5, "clip_param": 0.2, "lam": 0.95, "value_loss_coef": 1.0, "entropy_coef": 0.01},
            **{"learning_rate": 1e-3, "schedule": "adaptive", "desired_kl": 0.02, "max_grad_norm": 1.0, "init_noise_std": 1.0},
            **{
                "normalize_advantage_per_mini_batch": False,
                "actor_hidden_dims": [32, 32],
                "activation": "elu",
                "experiment_name": "a",
            },
        },
        purerl.PPOConfig(
            **{"env": "CartPole-v1", "num_envs": 8, "num_steps": 32, "total_timesteps": 391 * 8 * 32, "num_minibatches": 4},
            **{"num_epochs": 5, "clip_eps": 0.2, "value_clip_eps": 0.2, "gae_lambda": 0.95, "vf_coef": 2 * 1.0, "ent_coef": 0.01},
            **{"lr": 1e-3, "lr_schedule": "kl_adaptive", "desired_kl": 0.02, "lr_min": 1e-5, "max_grad_norm": 1.0},
            **{"grad_clip": "per_network", "advantage_norm": "batch", "hidden": (32, 32), "activation": "elu"},
        ),
    ),
    "RLlib": (
        {
            **{"env": "CartPole-v1", "num_env_runners": 2, "num_envs_per_env_runner": 4, "train_batch_size": 256},
            **{
                "minibatch_size": 64,
                "num_sgd_iter": 3,
                "lr": 1e-3,
                "gamma": 0.98,
                "lambda_": 1.0,
                "kl_coeff": 0.3,
                "kl_target": 0.02,
            },
            **{"use_kl_loss": True, "vf_loss_coeff": 1.0, "vf_clip_param": 10.0, "entropy_coeff": 0.0, "clip_param": 0.3},
            **{"fcnet_hiddens": [32, 32], "fcnet_activation": "relu", "framework": "torch", "stop": 1e5},
        },
        purerl.PPOConfig(
            **{"env": "CartPole-v1", "num_envs": 2 * 4, "num_steps": 256 // 8, "num_minibatches": 256 // 64, "num_epochs": 3},
            **{"lr": 1e-3, "lr_schedule": "constant", "gamma": 0.98, "gae_lambda": 1.0, "kl_penalty": "adaptive", "kl_coef": 0.3},
            **{"kl_coef_tolerance": 2.0, "kl_coef_raise": 1.5, "desired_kl": 0.02, "vf_coef": 2 * 1.0, "value_clip": "none"},
            **{"ent_coef": 0.0, "clip_eps": 0.3, "hidden": (32, 32), "activation": "relu", "total_timesteps": 1e5},
        ),
    ),
    "rl_games": (
        {
            **{"env_name": "CartPole-v1", "num_actors": 8, "horizon_length": 32, "minibatch_size": 64, "mini_epochs": 3},
            **{"max_frames": 1e5, "gamma": 0.98, "tau": 0.9, "learning_rate": 1e-3, "lr_schedule": "linear", "e_clip": 0.1},
            **{"clip_value": True, "critic_coef": 2.0, "entropy_coef": 0.0, "grad_norm": 1.0, "truncate_grads": True},
            **{
                "normalize_advantage": True,
                "normalize_value": True,
                "value_bootstrap": True,
                "bounds_loss_coef": 1e-4,
                "separate": False,
            },
        },
        purerl.PPOConfig(
            **{"env": "CartPole-v1", "num_envs": 8, "num_steps": 32, "num_minibatches": 8 * 32 // 64, "num_epochs": 3},
            **{"total_timesteps": 1e5, "gamma": 0.98, "gae_lambda": 0.9, "lr": 1e-3, "clip_eps": 0.1, "value_clip_eps": 0.1},
            **{"vf_coef": 2.0, "ent_coef": 0.0, "max_grad_norm": 1.0, "advantage_norm": "batch", "normalize_value": True},
            **{"truncation": "current_obs", "arch": "shared"},
        ),
    ),
}
# Fields named by notes of the tables.
NOTED = {"value_clip_eps", "value_clip", "lr_schedule", "lr_min", "obs_clip", "grad_clip", "kl_coef_tolerance", "kl_coef_raise"}
# A command line of CleanRL, and its purerl equivalent.
CLEANRL = (
    "--env-id CartPole-v1 --seed 3 --total-timesteps 100000 --learning-rate 1e-3 --num-envs 8 --num-steps 64 --no-anneal-lr "
)
CLEANRL += "--update-epochs 2 --clip-coef 0.1 --no-clip-vloss --no-norm-adv --ent-coef 0.0 --target-kl 0.05"
PURERL = "--env CartPole-v1 --seed 3 --total-timesteps 100000 --lr 1e-3 --num-envs 8 --num-steps 64 --lr-schedule constant "
PURERL += "--num-epochs 2 --clip-eps 0.1 --value-clip none --advantage-norm none --ent-coef 0.0 --target-kl 0.05"


def place(system, name):
    """Return the equivalent of a library's name by the table."""
    (row,) = (row for row in ROWS if row["system"] == system and row["name"] == name)
    assert row["purerl"] or row["note"]
    return row["purerl"]


@pytest.mark.parametrize("system", SCRIPTS)
def test_hyperparameters_of_other_libraries_port_by_the_table(system):
    settings, cfg = SCRIPTS[system]
    named = {place(system, name).removeprefix("cfg.") for name in settings if place(system, name).startswith("cfg.")}
    differs = {f.name for f in dataclasses.fields(cfg) if getattr(cfg, f.name) != getattr(purerl.PPOConfig(), f.name)}
    assert differs <= named | NOTED
    plan = purerl.make_train(cfg).plan
    assert plan.minibatch_size == 64
    assert plan.num_updates == -(-100_000 // (cfg.num_envs * cfg.num_steps))
    with pytest.raises(purerl.ConfigError) as error:
        purerl.PPOConfig(**settings)
    ours = {f.name for f in dataclasses.fields(cfg)}
    for problem in error.value.problems:
        assert problem.field not in ours
        target = place(system, problem.field)
        assert f"use `{target.removeprefix('cfg.')}`" in problem.hint or not target.startswith("cfg.")


def test_cleanrl_command_line_ports_by_the_table(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("purerl.cli.command.run_training", lambda cfg, options: asked.append((cfg, options.seed)) or 0)
    assert cli.main(["ppo", *PURERL.split()]) == 0
    ((cfg, seed),) = asked
    assert seed == 3
    differs = {f.name for f in dataclasses.fields(cfg) if getattr(cfg, f.name) != getattr(purerl.PPOConfig(), f.name)}
    flags = [flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in CLEANRL.split() if flag.startswith("--")]
    assert differs <= {place("CleanRL", flag).removeprefix("cfg.") for flag in flags}
    assert cli.main(["ppo", *CLEANRL.split()]) == 2
    said = capsys.readouterr().err
    for flag in flags:
        target = place("CleanRL", flag).removeprefix("cfg.")
        assert target == flag or flag == "seed" or f"use --{target.replace('_', '-')}" in said
