"""Hints in errors propose values that work, and name what the user meant: fields, flags, suites, files."""

import importlib
import re
import sys

import pytest

import purerl
from purerl import APPOConfig, ConfigError, PPGConfig, PPOConfig
from purerl.checks.check_environment import check_devices
from purerl.cli import main
from purerl.config import aliases
from purerl.config.value_checks import problems
from purerl.envs import suites
from tests.helpers.probes import Varied
from tests.helpers.recurrent import running_sum
from tests.helpers.tiny import CFG
from tests.ideas.own_memory import MovingAverage

# --- numbers ----------------------------------------------------------------------------------------------------------

SMALL = {"num_envs": 4, "num_steps": 12}
ONE_MINIBATCH = {**SMALL, "num_minibatches": 1}
COUNTS = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 24, 48, 64, 97, 4096)


def wrong_configs():
    """Yield configs with one number or several that do not fit the others."""
    kinds = ({}, {"memory": "gru"}, {"minibatches": "env"}, {"minibatches": "time"}, {"advantage_norm": "batch"})
    shapes = ({}, {"num_envs": 1}, {"num_envs": 16, "num_steps": 5}, {"num_envs": 1, "num_steps": 1})
    for count in COUNTS:
        yield from (PPOConfig(**SMALL | kind | shape, num_minibatches=count) for kind in kinds for shape in shapes)
        yield APPOConfig(**SMALL, replay=3, num_minibatches=count, minibatches="env")
        yield APPOConfig(**SMALL, replay=3, num_minibatches=count, memory="lstm", sequence_length=4)
        yield PPOConfig(**ONE_MINIBATCH, sequence_length=count)
        yield PPOConfig(**ONE_MINIBATCH, sequence_length=count, memory="gru")
        yield PPGConfig(**ONE_MINIBATCH, n_pi=6, aux_columns=count)
        yield PPGConfig(**ONE_MINIBATCH, n_pi=6, aux_accumulation=count)
    yield from (PPOConfig(num_envs=2**28), PPOConfig(num_steps=2**40), PPOConfig(metrics_every=2**30))
    yield PPGConfig(n_pi=2**16, num_envs=2**9)


def found_in(cfg):
    found = problems(cfg)
    return found or (cfg.minibatch_problems(recurrent=True) if cfg.memory != "none" else [])


def proposals(problem):
    """Yield the fields and values that a hint says would work."""
    numbers = re.search(r"((?:\d+ or )*\d+) would work", problem.hint)
    yield from ((problem.field, int(x)) for x in (numbers[1].split(" or ") if numbers else ()))
    yield from (("advantage_norm", x) for x in re.findall(r"or advantage_norm='(\w+)'", problem.hint))


def test_proposed_numbers_pass_the_check_that_proposes_them():
    followed = set()
    for cfg in wrong_configs():
        for problem in found_in(cfg):
            ways = list(proposals(problem))
            assert ways, (cfg, problem)
            for field, value in ways:
                assert problem.field not in {left.field for left in found_in(cfg.replace(**{field: value}))}, (
                    problem,
                    field,
                    value,
                )
                followed.add((problem.field, field))
    fields = {"num_envs", "num_steps", "num_minibatches", "sequence_length", "aux_columns", "aux_accumulation", "n_pi"}
    assert {problem for problem, field in followed if problem == field} == {*fields, "metrics_every", "advantage_norm"}
    assert ("num_minibatches", "advantage_norm") in followed


@pytest.mark.parametrize("count", [2, 3, 8])
def test_proposed_numbers_work_on_several_devices(count):
    made = {memory: purerl.make_train(CFG.replace(memory=memory, hidden=(4,)), env=Varied()) for memory in ("none", "gru")}

    def found_in(cfg):
        try:
            check_devices(cfg, made[cfg.memory].env, made[cfg.memory].network, count)
        except ConfigError as error:
            return error.problems
        return []

    sizes = {"num_envs": 2 * count, "num_steps": 12}
    wrong = [PPOConfig(num_envs=n, num_steps=12, memory=memory) for n in (1, 5, 7) for memory in made]
    wrong += [PPOConfig(**sizes, num_minibatches=n, memory=memory) for n in (24 * count, 4 * count) for memory in made]
    wrong += [PPGConfig(**sizes, n_pi=6, num_minibatches=1, aux_columns=n) for n in (1, 3, 4) if n % count]
    followed = [(problem, *way) for cfg in wrong for problem in found_in(cfg) for way in proposals(problem)]
    for cfg in wrong:
        for problem in found_in(cfg):
            for field, value in proposals(problem):
                assert problem.field not in {left.field for left in found_in(cfg.replace(**{field: value}))}, (problem, value)
    assert {field for _, field, _ in followed} >= {"num_envs", "num_minibatches", "aux_columns"}


@pytest.mark.parametrize("objects", [{"network": running_sum(2, 4)}, {"memory": MovingAverage(4)}], ids=["network", "memory"])
@pytest.mark.parametrize("wrong", [{"num_minibatches": 7}, {"num_minibatches": 16}, {"sequence_length": 7}], ids=str)
def test_proposed_numbers_work_with_custom_recurrent_networks(objects, wrong):
    cfg = CFG.replace(env="CartPole-v1", num_envs=4, num_steps=16).replace(**wrong)
    with pytest.raises(ConfigError) as error:
        purerl.make_train(cfg, env=Varied(), **objects)
    (problem,) = error.value.problems
    for field, value in proposals(problem):
        purerl.make_train(cfg.replace(**{field: value}), env=Varied(), **objects)


# --- names ------------------------------------------------------------------------------------------------------------

LINES = {
    "brax": {
        **{"num_timesteps": 1e6, "unroll_length": 5, "discounting": 0.97, "entropy_cost": 1e-2, "reward_scaling": 10.0},
        **{"num_updates_per_batch": 4, "policy_hidden_layer_sizes": (32, 32), "clipping_epsilon": 0.3, "num_evals": 10},
    },
    "rsl_rl": {
        **{"num_steps_per_env": 24, "actor_hidden_dims": (256, 128), "init_noise_std": 1.0, "num_mini_batches": 4},
        **{"max_iterations": 1500, "value_loss_coef": 1.0, "schedule": "adaptive", "lam": 0.95},
    },
    "RLlib": {
        **{"num_env_runners": 2, "train_batch_size": 4000, "lambda_": 0.95, "kl_coeff": 0.2, "vf_clip_param": 10.0},
        **{"sgd_minibatch_size": 128, "num_sgd_iter": 30, "entropy_coeff": 0.0, "fcnet_hiddens": (256, 256)},
    },
    "rl_games": {
        **{"tau": 0.95, "e_clip": 0.2, "horizon_length": 16, "mini_epochs": 4, "critic_coef": 2.0, "bounds_loss_coef": 1e-4},
        **{"value_bootstrap": True, "scale_value": 0.1, "kl_threshold": 8e-3, "num_actors": 4096},
    },
}


def here(system, name):
    (row,) = (row for row in aliases.rows() if (row["system"], row["name"]) == (system, name))
    return row["purerl"].removeprefix("cfg.")


@pytest.mark.parametrize("system", LINES)
def test_every_name_of_another_library_gets_a_hint_in_one_error(system, capsys):
    values = LINES[system] | {"num_evns": 8}
    with pytest.raises(ConfigError) as error:
        PPOConfig(**values)
    said = {problem.field: problem.hint for problem in error.value.problems}
    assert said.keys() == values.keys()
    assert "did you mean 'num_envs'" in said["num_evns"]
    assert all(f"use `{here(system, name)}`" in said[name] for name in LINES[system])
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    assert main(["ppo", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{len(values)} problems:"
    for name, line in zip(values, lines[1:], strict=True):
        assert line.strip().startswith(f"--{name.replace('_', '-')} = ")
        assert "--num-envs" in line or name != "num_evns"
        field = here(system, name) if name != "num_evns" else ""
        assert f"use --{field.replace('_', '-')}" in line or field not in PPOConfig.field_docs


def test_ambiguous_name_is_explained_by_the_other_names_given():
    both = aliases.rename_hint("tau")
    assert "`gae_lambda` (rl_games" in both
    assert "`APPOConfig.tau` (UniLab)" in both
    for others, meant in (({"e_clip": 0.2}, "gae_lambda"), ({"vtrace_clip_rho": 1.0}, "APPOConfig.tau")):
        with pytest.raises(ConfigError, match=rf"tau = 0.9: no such field; use `{meant}`"):
            PPOConfig(tau=0.9, **others)


def test_known_name_with_another_meaning_elsewhere_gets_a_hint(capsys):
    with pytest.raises(ConfigError, match=r"tau = 0.9: is the name of another field in rl_games; use `gae_lambda`"):
        APPOConfig(tau=0.9, e_clip=0.2)
    assert main(["appo", "--tau", "0.9", "--e-clip", "0.2"]) == 2
    assert "--tau = '0.9': is the name of another flag in rl_games; use --gae-lambda" in capsys.readouterr().err
    assert APPOConfig(tau=0.9).tau == 0.9


def test_hints_for_flags_name_flags(capsys):
    assert main(["ppo", "--num-eval-envs", "8", "--exp-name", "a", "--int-coef", "1", "-x"]) == 2
    said = capsys.readouterr().err
    assert all(f"use {flag}" in said for flag in ("--eval-episodes", "--directory", "--rnd-int-coef"))


# --- environments -----------------------------------------------------------------------------------------------------

WITHOUT_SUITE = {
    "ALE/Breakout-v5": "gymnasium/ALE/Breakout-v5",
    "gym/CartPole-v1": "gymnasium/CartPole-v1",
    "HalfCheetah-v5": "gymnasium/HalfCheetah-v5",
    "LunarLander-v3": "gymnasium/LunarLander-v3",
    "FrozenLake-v1": "gymnasium/FrozenLake-v1",
    "ant": "brax/ant",
    "Craftax-Symbolic-v1": "craftax/Craftax-Symbolic-v1",
    "Snake-v1": "jumanji/Snake-v1",
    "Navix-Empty-5x5-v0": "navix/Navix-Empty-5x5-v0",
    "minatar-breakout": "pgx/minatar-breakout",
    "CartpoleBalance": "playground/CartpoleBalance",
    "MiniGrid-DoorKey-5x5": "xminigrid/MiniGrid-DoorKey-5x5",
}


@pytest.mark.parametrize("env_id", WITHOUT_SUITE)
def test_id_without_its_suite_gets_a_hint_with_the_suite(env_id):
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=rf"did you mean .*'{re.escape(WITHOUT_SUITE[env_id])}'"):
        purerl.make_train(PPOConfig(env=env_id))


REGISTERED = {
    "brax": lambda: importlib.import_module("brax.envs")._envs,
    "craftax": lambda: importlib.import_module("purerl.envs.suites.craftax").NAMES,
    "jumanji": lambda: importlib.import_module("jumanji").registered_environments(),
    "navix": lambda: importlib.import_module("navix").registry(),
    "pgx": lambda: importlib.import_module("purerl.envs.suites.pgx").NAMES,
    "playground": lambda: importlib.import_module("mujoco_playground").registry.ALL_ENVS,
    "xminigrid": lambda: importlib.import_module("xminigrid").registered_environments(),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suite", REGISTERED)
def test_every_suite_id_is_recognised_without_its_prefix(suite):
    pytest.importorskip(suites.SUITES[suite])
    for name in REGISTERED[suite]():
        assert suites.suggest(name, ()) == f"did you mean '{suite}/{name}'?"


def test_missing_mujoco_package_is_reported_with_its_extra(monkeypatch):
    gymnasium = pytest.importorskip("gymnasium")
    missing = gymnasium.envs.registration.EnvSpec("Missing-v0", entry_point="gymnasium.envs.mujoco_missing:Env")
    monkeypatch.setitem(gymnasium.registry, "Missing-v0", missing)
    with pytest.raises(ConfigError, match=r"env = 'gymnasium/Missing-v0': No module named .*pip install '\.\[gymnasium\]'"):
        purerl.make_train(PPOConfig(env="gymnasium/Missing-v0"))


@pytest.mark.slow
@pytest.mark.parametrize("package", ["imageio", "mujoco"])
def test_half_cheetah_names_the_extra_of_a_missing_package(package, fresh_python):
    pytest.importorskip("mujoco")
    code = f"""
import sys
sys.modules[{package!r}] = None
import purerl
try:
    purerl.make_train(purerl.PPOConfig(env="gymnasium/HalfCheetah-v5"))
except purerl.ConfigError as error:
    print(error)
"""
    said = fresh_python(code)
    assert "env = 'gymnasium/HalfCheetah-v5'" in said
    assert "pip install '.[gymnasium]'" in said


def test_command_line_imports_the_module_that_registers_an_id(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium")
    code = "from gymnasium.envs import classic_control\nimport gymnasium\n"
    code += "gymnasium.register('Mine-v0', classic_control.CartPoleEnv, max_episode_steps=20)\n"
    (tmp_path / "registers_mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cfg = PPOConfig(env="gymnasium/registers_mine:Mine-v0")
    with pytest.raises(ConfigError, match="the module registers_mine is not imported"):
        purerl.make_train(cfg)
    asked = []
    monkeypatch.setattr("purerl.cli.training.fit", lambda *args, **options: asked.append((args, options)) or purerl.make_train(1))
    assert main(["ppo", "--env", cfg.env]) == 2
    assert "env" not in asked[0][1]
    assert purerl.make_train(cfg).env.max_steps == 20


# --- files and arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text"), [("a.yaml", "lr: 1e-3"), ("a.json", '{"lr": 1e-3}'), ("a.toml", "lr 1e-3")])
def test_config_file_that_is_no_toml_is_refused(name, text, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    assert main(["ppo", "--config", str(tmp_path / name)]) == 2
    assert "must be a TOML file, with lines such as lr = 1e-3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: purerl.recorders.Wandb("proj"), r"project = 'proj': must be a keyword argument: Wandb\(project='proj'\)"),
        (lambda: purerl.recorders.JsonLines(10), "path = 10: must be a path"),
        (lambda: purerl.fit(PPOConfig(), "runs/a"), "pass a directory as directory='runs/a'"),
        (lambda: purerl.sweep(PPOConfig(), {"lr": [1e-3]}).fit("runs/a"), "pass a directory as directory='runs/a'"),
    ],
    ids=["project", "path", "directory of fit", "directory of a sweep"],
)
def test_misplaced_positional_argument_is_named(call, says):
    with pytest.raises(ConfigError, match=says):
        call()


def test_negative_write_every_is_refused_by_its_name(tmp_path, capsys):
    assert main(["ppo", "--directory", str(tmp_path / "a"), "--write-every", "-1"]) == 2
    assert "write_every = -1" in capsys.readouterr().err
