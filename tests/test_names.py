"""The table of what other systems call things (`tests/data/names.csv`, in the README): every name leads somewhere."""

import csv
import dataclasses
import functools
import importlib
import inspect
import math
import pathlib
import re

import jax
import pytest

import purerl
from tests.probes import Rich, Varied, acting
from tests.tiny import CFG, digest

ROWS = list(csv.DictReader((pathlib.Path(__file__).parent / "data" / "names.csv").read_text().splitlines()))
FIELDS = sorted({row["purerl"].removeprefix("cfg.") for row in ROWS if row["purerl"].startswith("cfg.")})

# What a field is set to, and what else must be on for it to matter.
POLYNOMIAL, ADAPTIVE = {"lr_schedule": "polynomial"}, {"lr_schedule": "kl_adaptive", "desired_kl": 1e-4}
CHANGES = {
    "action_distribution": ("tanh", {}),
    "adam_eps": (1.0, {}),
    "arch": ("shared", {}),
    "clip_eps": (1e-4, {}),
    "compute_dtype": ("bfloat16", {}),
    "critic_lr_scale": (0.5, {}),
    "critic_obs": ("secret", {}),
    "decay_steps": (3, POLYNOMIAL),
    "desired_kl": (10.0, ADAPTIVE),
    "ent_coef": (1.0, {}),
    "estimator": ("td_lambda", {"return_steps": 1}),
    "gae_lambda": (0.1, {}),
    "gamma": (0.1, {}),
    "grad_clip": ("per_network", {"max_grad_norm": 1e-2}),
    "hidden": ((5,), {}),
    "init": ("lecun", {}),
    "kl_stop": ("epoch", {"target_kl": 2.5e-3, "lr": 1e-2, "num_minibatches": 8, "num_epochs": 4}),
    "learning_starts": (10**4, {}),
    "lr": (1e-2, {}),
    "lr_final": (1e-4, POLYNOMIAL),
    "lr_kl_every": ("epoch", ADAPTIVE),
    "lr_kl_factor": (5.0, ADAPTIVE),
    "lr_kl_tolerance": (1e6, ADAPTIVE),
    "lr_schedule": ("polynomial", {}),
    "max_grad_norm": (1e-3, {}),
    "memory": ("gru", {}),
    "minibatches": ("env", {}),
    "normalize_obs": (True, {}),
    "normalize_value": (True, {}),
    "num_envs": (8, {}),
    "num_epochs": (1, {}),
    "num_minibatches": (4, {}),
    "num_steps": (8, {}),
    "obs_clip": (0.1, {"normalize_obs": True}),
    "optimizer": ("sgd", {}),
    "sequence_length": (4, {"memory": "gru"}),
    "target_kl": (1e-9, {}),
    "truncation": ("zero", {}),
    "value_clip": ("none", {"value_clip_eps": 1e-3}),
    "value_clip_eps": (1e-3, {}),
    "vf_coef": (5.0, {}),
    "warmup_steps": (64, {}),
}
# Fields whose effect is not on the state after one update, and what it is on.
ELSEWHERE = {
    "env": lambda value: purerl.make_train(purerl.PPOConfig(env=value)).env.action_space,
    "total_timesteps": lambda value: purerl.make_train(CFG.replace(total_timesteps=value), env=Varied()).plan.num_updates,
    "info": lambda value: set(jax.eval_shape(*one_update(CFG.replace(info=value), "rich"))[1]),
}
ENVS = {"critic_obs": "rich", "action_distribution": "box"}
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
    floats = {f.name: float(getattr(base, f.name)) for f in dataclasses.fields(base) if f.type is float}
    return digest(updated(base.replace(**floats | dict(changes)), env))


# Floats share one program. Of the others, each of which compiles one of its own, a few are tried every time.
EVERY_TIME = {"kl_stop", *ELSEWHERE}
EVERY_TIME |= {f.name for f in dataclasses.fields(CFG) if f.type is float}


@pytest.mark.parametrize("name", [n if n in EVERY_TIME else pytest.param(n, marks=pytest.mark.slow) for n in FIELDS])
def test_every_field_it_names_changes_something(name):
    if name in ELSEWHERE:
        values = {"env": ("CartPole-v1", "Pendulum-v1"), "total_timesteps": (64, 128), "info": ((), ("illegal",))}[name]
        assert ELSEWHERE[name](values[0]) != ELSEWHERE[name](values[1])
        return
    value, needs = CHANGES[name]
    env = ENVS.get(name, "plain")
    off, on = tuple(needs.items()), tuple({**needs, name: value}.items())
    assert state_after(off, env) != state_after(on, env)


def resolve(says):
    """The thing that an entry of the table names."""
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


def test_every_name_leads_somewhere_or_says_why_not():
    for row in ROWS:
        if row["purerl"] in ("Train.init", "Train.update"):  # made for each run
            continue
        assert row["purerl"] or row["note"], row
        if row["purerl"]:
            assert resolve(row["purerl"]) is not None, row


def test_no_name_of_the_five_systems_is_twice():
    names = [(row["system"], row["name"]) for row in ROWS]
    assert len(names) == len(set(names))
    assert {system for system, _ in names} == {"rlib", "MetaBox", "rllte", "skrl", "UniLab"}
