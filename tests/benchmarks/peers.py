"""Comparison of purerl with other libraries at equal steps: scores, and steps and seconds to a threshold.

python -m tests.benchmarks.peers purerl
python -m tests.benchmarks.peers rejax --peer PYTHON                       in the virtual environment of speed.py
python -m tests.benchmarks.peers purejaxrl --peer PYTHON --path CLONE      gymnax 0.0.9, flax, distrax
python -m tests.benchmarks.peers Stable-Baselines3 --peer PYTHON           stable-baselines3 2.9.2, gymnasium
python -m tests.benchmarks.peers SBX --peer PYTHON                         sbx-rl 0.28
python -m tests.benchmarks.peers draw                                      the picture, from `peers.json`

purerl uses its preset. On the control tasks it uses the result of `purerl.tune` at this number of steps, if better on two other
seeds. Each peer uses its authors' published hyperparameters, or purerl's, if these are better for the peer on the same two seeds
(four on games, whose scores scatter). So run purerl first. Scores are mean returns of 128 fresh episodes with sampled actions. A
run reaches a threshold at the first of 50 points in training at which the mean return of 16 such episodes is at least the
threshold. purejaxrl returns no parameters during training. So both numbers use its training episodes: the last 128, and those
that ended since the previous point.

Seconds are measured for two seeds, trained one after the other on an idle machine. They count from the start of the process,
include imports and compilation once, and exclude evaluations. The other seeds are trained two at a time. `--record` saves
everything in `peers.json`.
"""

import concurrent.futures
import functools
import json
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import purerl
from purerl.config.presets import presets
from purerl.runs.analysis.statistics import interval, iqm
from purerl.studies.space import default_ranges
from tests.benchmarks import recording
from tests.benchmarks.peers_tasks import POINTS, TASKS, curves, reached

HERE = pathlib.Path(__file__).parent
TIMED_SEEDS, OTHER_SEEDS, FIRST_TUNING_SEED, FIRST_SEED_OF_TRIALS = range(2), range(2, 8), 100, 1000
TRIALS = 32
CONTROL = tuple(TASKS)[:4]


def linear(start):
    """Return a hyperparameter that falls linearly from `start` to 0, as `lin_` in rl-baselines3-zoo."""
    return {"linear": start}


# rejax: configs/gymnax and benchmark/breakout_1m.yaml of its repository (d751095), which has no config for Asterix.
_REJAX_SMALL = {"num_envs": 5, "num_steps": 100, "num_epochs": 5, "num_minibatches": 5, "learning_rate": 7.5e-4}
_REJAX_SMALL |= {"max_grad_norm": 0.5, "ent_coef": 0.01, "activation": "tanh"}
_REJAX_BREAKOUT = {"num_envs": 32, "num_steps": 32, "num_epochs": 4, "num_minibatches": 4, "learning_rate": 2.5674e-4}
_REJAX_BREAKOUT |= {"max_grad_norm": 1, "gamma": 0.995, "ent_coef": 0.01, "activation": "tanh"}
REJAX = {
    "CartPole-v1": _REJAX_SMALL,
    "Acrobot-v1": _REJAX_SMALL | {"normalize_observations": True},
    "Pendulum-v1": {"num_envs": 100, "num_steps": 100, "num_epochs": 10, "num_minibatches": 10, "learning_rate": 1e-3}
    | {"max_grad_norm": 10, "gamma": 0.995, "ent_coef": 0.0, "activation": "swish", "normalize_observations": True},
    "MountainCarContinuous-v0": {"num_envs": 5, "num_steps": 100, "num_epochs": 10, "num_minibatches": 10}
    | {"learning_rate": 3e-4, "max_grad_norm": 10, "gamma": 0.9, "ent_coef": 0.0, "activation": "relu"},
    "Breakout-MinAtar": _REJAX_BREAKOUT,
    "Asterix-MinAtar": _REJAX_BREAKOUT,
}

# purejaxrl (31756b1): the initial configs of `ppo.py`, examples/brax_minatar.ipynb and `ppo_continuous_action.py`.
_PUREJAXRL = {"UPDATE_EPOCHS": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5}
_PUREJAXRL |= {"DEBUG": False}
_PUREJAXRL_SMALL = {"LR": 2.5e-4, "NUM_ENVS": 4, "NUM_STEPS": 128, "NUM_MINIBATCHES": 4, "ENT_COEF": 0.01}
_PUREJAXRL_SMALL |= {"ACTIVATION": "tanh", "ANNEAL_LR": True}
_PUREJAXRL_MINATAR = {"LR": 5e-3, "NUM_ENVS": 64, "NUM_STEPS": 128, "NUM_MINIBATCHES": 8, "ENT_COEF": 0.01}
_PUREJAXRL_MINATAR |= {"ACTIVATION": "relu", "ANNEAL_LR": True}
_PUREJAXRL_BOX = {"LR": 3e-4, "NUM_ENVS": 2048, "NUM_STEPS": 10, "NUM_MINIBATCHES": 32, "ENT_COEF": 0.0}
_PUREJAXRL_BOX |= {"ACTIVATION": "tanh", "ANNEAL_LR": False, "NORMALIZE_ENV": True}
PUREJAXRL = {
    **dict.fromkeys(("CartPole-v1", "Acrobot-v1"), _PUREJAXRL | _PUREJAXRL_SMALL),
    **dict.fromkeys(("Pendulum-v1", "MountainCarContinuous-v0"), _PUREJAXRL | _PUREJAXRL_BOX),
    **dict.fromkeys(("Breakout-MinAtar", "Asterix-MinAtar"), _PUREJAXRL | _PUREJAXRL_MINATAR),
}

# Stable-Baselines3 and SBX: hyperparams/ppo.yml of rl-baselines3-zoo (22e3ff2).
ZOO = {
    "CartPole-v1": {"num_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
    | {"ent_coef": 0.0, "learning_rate": linear(1e-3), "clip_range": linear(0.2)},
    "Acrobot-v1": {"num_envs": 16, "n_steps": 256, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.94, "ent_coef": 0.0}
    | {"normalize": True},
    "Pendulum-v1": {"num_envs": 4, "n_steps": 1024, "n_epochs": 10, "gamma": 0.9, "gae_lambda": 0.95, "ent_coef": 0.0}
    | {"learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4},
    "MountainCarContinuous-v0": {"num_envs": 1, "n_steps": 8, "batch_size": 256, "n_epochs": 10, "gamma": 0.9999}
    | {"gae_lambda": 0.9, "ent_coef": 0.00429, "learning_rate": 7.77e-5, "clip_range": 0.1, "max_grad_norm": 5, "vf_coef": 0.19}
    | {"use_sde": True, "normalize": True, "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False}},
}


def preset(env):
    """Return purerl's preset of a task, or the defaults, with the task's number of steps."""
    return (presets().get(env) or purerl.PPOConfig(env=env)).replace(total_timesteps=TASKS[env].steps)


def tuned(env):
    """Tune purerl on a task, with a linear learning rate: an adaptive rate helps only in long runs."""
    cfg = preset(env).replace(lr_schedule="linear")
    options = {"trials": TRIALS, "at_once": 8, "num_seeds": TASKS[env].tuning_seeds, "seed": FIRST_SEED_OF_TRIALS}
    return purerl.tune(cfg, default_ranges(cfg), finalists=2, final_seeds=1, **options).cfg


def ours(env):
    """Return purerl's hyperparameters in `peers.json`, as a config."""
    return purerl.PPOConfig.from_json(json.dumps(recording.load("peers.json")[env]["purerl"]["settings"]))


def for_rejax(cfg):
    """Translate a config to rejax, as far as possible."""
    cfg = purerl.make_train(cfg).cfg
    same = ("num_envs", "num_steps", "num_epochs", "num_minibatches", "gamma", "gae_lambda", "ent_coef", "clip_eps", "vf_coef")
    names = {name: _plain(getattr(cfg, name)) for name in (*same, "max_grad_norm", "activation")}
    return names | {
        "hidden": list(cfg.hidden),
        "learning_rate": float(cfg.lr),
        "normalize_observations": bool(cfg.normalize_obs),
        "normalize_rewards": bool(cfg.normalize_reward),
    }


def for_purejaxrl(cfg):
    """Translate a config to purejaxrl, as far as possible."""
    cfg = purerl.make_train(cfg).cfg
    names = {"LR": "lr", "NUM_ENVS": "num_envs", "NUM_STEPS": "num_steps", "NUM_MINIBATCHES": "num_minibatches"}
    names |= {"UPDATE_EPOCHS": "num_epochs", "GAMMA": "gamma", "GAE_LAMBDA": "gae_lambda", "CLIP_EPS": "clip_eps"}
    names |= {"ENT_COEF": "ent_coef", "VF_COEF": "vf_coef", "MAX_GRAD_NORM": "max_grad_norm", "ACTIVATION": "activation"}
    theirs = {name: _plain(getattr(cfg, field)) for name, field in names.items()}
    return theirs | {"ANNEAL_LR": cfg.lr_schedule == "linear", "NORMALIZE_ENV": bool(cfg.normalize_obs), "DEBUG": False}


def for_baselines(cfg):
    """Translate a config to Stable-Baselines3 and SBX, as far as possible."""
    cfg = purerl.make_train(cfg).cfg
    rate = linear(float(cfg.lr)) if cfg.lr_schedule == "linear" else float(cfg.lr)
    names = {"n_steps": "num_steps", "n_epochs": "num_epochs", "gamma": "gamma", "gae_lambda": "gae_lambda"}
    names |= {"clip_range": "clip_eps", "ent_coef": "ent_coef", "vf_coef": "vf_coef", "max_grad_norm": "max_grad_norm"}
    theirs = {name: _plain(getattr(cfg, field)) for name, field in names.items()}
    batch = {"batch_size": cfg.num_envs * cfg.num_steps // cfg.num_minibatches, "learning_rate": rate, "num_envs": cfg.num_envs}
    return theirs | batch | {"normalize": bool(cfg.normalize_obs), "policy_kwargs": {"net_arch": list(cfg.hidden)}}


def _plain(value):
    return value if isinstance(value, str | int) else float(value)


class Program(NamedTuple):
    """A script that trains, its tasks, its published hyperparameters, and a translation of purerl's configs."""

    script: str
    tasks: tuple
    published: dict
    translated: Callable


PROGRAMS = {
    "purerl": Program("peers_purerl.py", tuple(TASKS), {}, lambda cfg: json.loads(cfg.to_json())),
    "rejax": Program("peers_rejax.py", tuple(TASKS), REJAX, for_rejax),
    "purejaxrl": Program("peers_purejaxrl.py", tuple(TASKS), PUREJAXRL, for_purejaxrl),
    "Stable-Baselines3": Program("peers_baselines.py", CONTROL, ZOO, for_baselines),
    "SBX": Program("peers_baselines.py", CONTROL, ZOO, for_baselines),
}


def measure(name, env, settings, *, python, path, seeds):
    """Train the seeds of a task one after the other in a process of their own; return the dict that the process prints.

    Returns:
        startup: seconds before the first step. seconds, scores: one number for each seed. curves `[seeds, 50]`: mean return at
        each point in training; None where no episode of purejaxrl ended.
    """
    work = {"program": name, "env": env, "total_timesteps": TASKS[env].steps, "seeds": list(seeds), "points": POINTS}
    work |= {"settings": settings, "path": path, "started": time.time()}
    return run(python, PROGRAMS[name].script, work)


def side_by_side(trained, settings, seeds):
    """Train half of the seeds in each of two processes; return the scores and the curves of all seeds."""
    halves = seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda half: trained(settings, seeds=half), halves)
    return {name: first[name] + second[name] for name in ("scores", "curves")}


def run(python, script, work):
    """Run a script; return the last line of its output, parsed as JSON."""
    done = subprocess.run([python, str(HERE / script), json.dumps(work)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def draw(kept):
    """Draw a panel for each task: the interquartile mean return over seeds and its 95 % interval, against seconds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure, envs = Figure(figsize=(10, 5), layout="constrained"), recording.in_order(kept, TASKS)
    for i, env in enumerate(envs):
        axes = figure.add_subplot(2, 3, i + 1)
        for name in PROGRAMS:
            if name not in kept[env]:
                continue
            row = kept[env][name]
            values = curves(row)
            seconds = row["startup"] + np.arange(1, POINTS + 1) / POINTS * np.median(row["seconds"])
            seen = ~np.isnan(values).any(0)
            axes.plot(seconds[seen], iqm(values[:, seen]), label=name)
            axes.fill_between(seconds[seen], *interval(values[:, seen], resamples=500), alpha=0.2, lw=0)
        axes.axhline(TASKS[env].threshold, color="gray", ls=":", lw=1)
        axes.set(title=env, xscale="log", xlabel="seconds")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(PROGRAMS), frameon=False)
    figure.savefig(HERE / "peers.png", dpi=110)


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("program", choices=(*PROGRAMS, "draw"))
    parser.add_argument("--peer", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--path", metavar="CLONE", default="", help="a clone of purejaxrl's repository")
    parser.add_argument("--only", metavar="ENV", default="", help="run only tasks whose name contains this text")
    args = parser.parse_args()
    if args.program == "draw":
        return draw(recording.load("peers.json"))
    for env in (env for env in PROGRAMS[args.program].tasks if args.only in env):
        trained = functools.partial(measure, args.program, env, python=args.peer, path=args.path)
        whose, settings, tried = chosen(args.program, env, trained)
        row = {"whose": whose, "settings": settings, "tried": tried} | trained(settings, seeds=TIMED_SEEDS)
        others = side_by_side(trained, settings, OTHER_SEEDS)
        row |= {name: row[name] + others[name] for name in others}
        steps, seconds = reached(row, env)
        says = f"score {iqm(np.array(row['scores'])):.1f}, {np.median(steps):,.0f} steps, {np.median(seconds):.1f} s"
        print(f"{env}, {args.program}, {whose} settings: {says}", flush=True)
        if args.record:
            kept = recording.load("peers.json")
            row |= recording.circumstances(f"peers {args.program} --only {env}")
            kept[env] = recording.in_order(kept.get(env, {}) | {args.program: row}, PROGRAMS)
            recording.write("peers.json", kept, TASKS)
    return None


def chosen(name, env, trained):
    """Choose a program's hyperparameters; return their origin, their values, and each choice's mean score on the tuning seeds."""
    program = PROGRAMS[name]
    if program.published:
        settings = {"its own": program.published[env], "purerl's": program.translated(ours(env))}
    else:
        configs = {"preset": preset(env)} | ({"tuned": tuned(env)} if env in CONTROL else {})
        settings = {whose: program.translated(cfg) for whose, cfg in configs.items()}
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + TASKS[env].tuning_seeds)
    tried = {whose: _mean(side_by_side(trained, x, seeds)["scores"]) for whose, x in settings.items()}
    whose = max(tried, key=lambda whose: -math.inf if tried[whose] is None else tried[whose])
    return whose, settings[whose], tried


def _mean(scores):
    """Return the mean; None if any value is None, because no episode ended."""
    return None if None in scores else float(np.mean(scores))


if __name__ == "__main__":
    sys.exit(main())
