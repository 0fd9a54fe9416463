"""The cases of `studies.py`: their configs and comparisons."""

import itertools
from typing import Any, NamedTuple

import purerl
from tests.benchmarks.references import REFERENCES


class Case(NamedTuple):
    """A row of a study: a config, its tuning, and its score.

    cfg: the config.
    env: an environment that replaces the config's.
    memory: a recurrent module that replaces the config's.
    grid: a dict from a field, or a tuple of fields, to values that are tried on the tuning seeds.
    trials: the number of trials of `purerl.tune`, for learning rate, entropy bonus, `gamma` and `gae_lambda`; 0: no tuning.
    ranges: ranges of further fields for the trials, or other ranges of the same fields.
    fixed: fields that are not tuned.
    tuning_steps: steps of each trial; 0: as many as in the config.
    like: the name of the case in the same study whose hyperparameters are used.
    before: a config that is trained first; the training of `cfg` then begins with its parameters and statistics.
    last: score the last training episodes, not fresh episodes of the final parameters.
    timed: `--seconds` measures the seconds of one run.
    success: score the share of fresh episodes with a positive return.
    training_levels: score episodes in the training levels.
    purejaxrl: train purejaxrl's PPO with the sizes, the learning rate and the activation of `cfg`; score it as with `last`.
    seeds: the seeds of the scores.
    """

    cfg: Any
    env: Any = None
    memory: Any = None
    grid: dict[str, tuple] | None = None
    trials: int = 0
    ranges: dict[str, purerl.Range] = {}
    fixed: tuple[str, ...] = ()
    tuning_steps: int = 0
    like: str = ""
    before: Any = None
    last: bool = False
    timed: bool = False
    success: bool = False
    training_levels: bool = False
    purejaxrl: bool = False
    seeds: range = range(8)


# --- recurrent networks -----------------------------------------------------------------------------------------------

CHAIN = purerl.PPOConfig(
    env="MemoryChain-bsuite",
    total_timesteps=2_000_000,
    num_envs=64,
    num_steps=64,
    hidden=(32,),
    memory="gru",
    memory_size=32,
    lr=4e-3,
    gamma=1.0,
    gae_lambda=0.0,
    ent_coef=0.05,
    ent_schedule="linear",
)


def chains():
    """Build cases of memory chains of n + 1 steps, whose last step asks for the bit of the first. The last three are tuned."""
    sizes = {
        "8, rollouts of 64": (8, {"total_timesteps": 1_000_000}),
        "8, sequences of 8": (8, {"sequence_length": 8}),
        "16, rollouts of 16": (16, {"num_steps": 16, "num_envs": 256}),
        "16, sequences of 16": (16, {"num_steps": 32, "num_envs": 256, "num_minibatches": 8, "sequence_length": 16}),
        "32, rollouts of 64": (32, {}),
        "100, rollouts of 128": (100, {"num_steps": 128}),
    }
    cases = {}
    for name, (length, changes) in sizes.items():
        cfg = CHAIN.replace(env_params={"memory_length": length}, **changes)
        cases[f"MemoryChain of {name}: GRU"] = Case(cfg)
        cases[f"MemoryChain of {name}: minimal GRU"] = Case(cfg.replace(memory="min_gru"))
        cases[f"MemoryChain of {name}: no memory"] = Case(cfg.replace(memory="none", sequence_length=0))
    cfg = CHAIN.replace(env_params={"memory_length": 100}, num_steps=128)
    ranges = {"gamma": purerl.Range(0.95, 1.0), "gae_lambda": purerl.Range(0.0, 0.99)}
    for name, memory in (("GRU", "gru"), ("minimal GRU", "min_gru"), ("no memory", "none")):
        cases[f"MemoryChain of 100, tuned: {name}"] = Case(cfg.replace(memory=memory), trials=TRIALS, ranges=ranges)
    return cases


def long_chains():
    """Build cases of memory chains of up to 1,001 steps, shorter than a rollout. All hyperparameters but sizes are the same."""
    cfg = CHAIN.replace(num_envs=32, num_minibatches=4, lr=2e-3, hidden=(64,), memory_size=64, arch="shared")
    cases = {}
    for length, num_steps, steps in ((100, 128, 1_000_000), (300, 512, 4_000_000), (1000, 1024, 8_000_000)):
        params = {"memory_length": length, "max_steps_in_episode": 2 * length}
        chain = cfg.replace(env_params=params, num_steps=num_steps, total_timesteps=steps)
        cases[f"MemoryChain of {length:,}: LRU"] = Case(chain.replace(memory="lru"))
        cases[f"MemoryChain of {length:,}: minimal GRU"] = Case(chain.replace(memory="min_gru"))
        if length == 100:  # a GRU on longer chains takes hours
            cases[f"MemoryChain of {length:,}: GRU"] = Case(chain)
    return cases


def remembering():
    """Build cases of memories with about 21,000 parameters each, with training sequences longer and shorter than the task needs.

    Each memory is tuned on the longer sequences, of 128 steps. Longer chains have the hyperparameters of the chain of 100, and
    sequences of 512 and 1,024 steps, or shorter ones for memories that learn from sequences shorter than the next shorter chain.
    GTrXL, which is slow, is only tried on sequences of 128 steps.
    """
    from tests.benchmarks.memories import MEMORIES  # starts JAX; `use_cores` must run first
    from tests.benchmarks.remembering import Counting, RepeatPrevious

    cfg = CHAIN.replace(num_minibatches=4, hidden=(64,), arch="shared", total_timesteps=1_000_000, memory="none")
    chain = {"memory_length": 100, "max_steps_in_episode": 200}
    tasks = {
        "MemoryChain of 100": (cfg.replace(env_params=chain), None, 32),
        "RepeatPrevious of 32": (cfg, purerl.wrap_env(RepeatPrevious(32, 128)), 16),
        "marks in 100 steps": (cfg, purerl.wrap_env(Counting(100)), 16),
    }
    ranges = {"lr": purerl.Range(5e-4, 1e-2, log=True), "ent_coef": purerl.Range(0.01, 0.1, log=True)}
    ranges |= {"gae_lambda": purerl.Range(0.0, 0.99)}
    tuning = {"trials": 8, "ranges": ranges, "fixed": ("gamma",), "tuning_steps": 500_000}
    cases = {}
    for (task, (cfg, env, short)), (name, memory) in itertools.product(tasks.items(), MEMORIES.items()):
        cfg, own = (cfg.replace(**memory), None) if isinstance(memory, dict) else (cfg, memory)
        sequences = lambda steps, cfg=cfg: cfg.replace(num_steps=steps, num_envs=32 * 128 // steps)
        label = f"{task}: {name}"
        cases[label] = Case(sequences(128), env, memory=own, **tuning)
        if name not in ("GTrXL", "no memory"):
            cases[f"{label}, sequences of {short}"] = Case(sequences(short), env, memory=own, like=label)
        if task == "MemoryChain of 100" and name not in ("GTrXL", "no memory"):
            cases |= {longer: Case(cfg, memory=own, like=label) for longer, cfg in longer_chains(cfg, name).items()}
    return cases


def longer_chains(cfg, name):
    """Return a memory's configs of chains of 300 and 1,000, by label, if it remembers on the next shorter chain."""
    tried = {}
    for length, steps, short, total in ((300, 512, 128, 4_000_000), (1000, 1024, 512, 8_000_000)):
        params = {"memory_length": length, "max_steps_in_episode": 2 * length}
        chain = cfg.replace(env_params=params, total_timesteps=total)
        if name != "GRU" and (length == 300 or name in ("LRU", "S5", "minimal GRU of 1,000 steps")):
            tried[f"MemoryChain of {length:,}: {name}"] = chain.replace(num_envs=32, num_steps=steps)
        if name == "LRU" or (name == "S5" and length == 300):
            fewer = chain.replace(num_envs=32 * steps // short, num_steps=short)
            tried[f"MemoryChain of {length:,}: {name}, sequences of {short}"] = fewer
    return tried


def corridors():
    """Build cases of corridors: one end shows the right way at the other. Cases of 4 M steps use the hyperparameters of 1 M."""
    cfg = purerl.preset("xminigrid/MiniGrid-DoorKey-5x5").replace(env="xminigrid/MiniGrid-MemoryS8", total_timesteps=1_000_000)
    memories = {
        "GRU": cfg,
        "minimal GRU": cfg.replace(memory="min_gru"),
        "no memory": cfg.replace(memory="none", memory_size=128),
    }
    cases = {f"MiniGrid-MemoryS8: {name}": Case(cfg, trials=TRIALS) for name, cfg in memories.items()}
    long = {
        f"MiniGrid-MemoryS8, 4 M: {name}": Case(cfg.replace(total_timesteps=4_000_000), like=f"MiniGrid-MemoryS8: {name}")
        for name, cfg in memories.items()
    }
    return cases | long


def hidden():
    from tests.benchmarks.hidden import StillCartPole, StillPendulum  # gymnax starts JAX; `use_cores` must run first

    cart = purerl.PPOConfig(
        num_envs=32,
        num_minibatches=8,
        lr=1e-3,
        hidden=(64,),
        normalize_obs=True,  # velocities show only as small differences
        normalize_value=True,
        value_clip="none",
        memory_size=64,
    )
    pole = purerl.preset("Pendulum-v1").replace(
        total_timesteps=2_000_000,
        num_steps=64,
        num_epochs=8,
        num_minibatches=16,
        lr=5e-4,
        lr_schedule="linear",
        gamma=0.95,
        clip_eps=0.2,
        normalize_value=True,
        memory_size=64,
    )
    return {
        "CartPole, everything seen": Case(purerl.PPOConfig()),
        "CartPole without velocities, GRU": Case(cart.replace(memory="gru", sequence_length=32), StillCartPole()),
        "CartPole without velocities, no memory": Case(cart.replace(hidden=(64, 64)), StillCartPole()),
        "Pendulum, everything seen": Case(pole),
        "Pendulum without velocity, GRU": Case(
            pole.replace(memory="gru", sequence_length=32, memory_inputs=("action",)), StillPendulum()
        ),
        "Pendulum without velocity, no memory": Case(pole, StillPendulum()),
    }


# --- phases -----------------------------------------------------------------------------------------------------------

GAMES = ("Breakout-MinAtar", "Asterix-MinAtar", "SpaceInvaders-MinAtar")
SIZES = {"total_timesteps": 250_000, "num_envs": 64, "num_steps": 32, "num_minibatches": 8, "gamma": 0.99}
SIZES |= {"torso": "mlp", "hidden": (128, 64), "activation": "relu", "lr_schedule": "linear"}
RATES, ENTROPIES = (1e-3, 2.5e-3, 5e-3), (0.01, 0.03)
PPG = purerl.PPGConfig(**SIZES, n_pi=16, aux_columns=16, vf_coef=0.5, max_grad_norm=0.5)


def phases():
    """Build cases whose hyperparameters are chosen on the first game."""
    rates = {"ent_coef": ENTROPIES, ("lr", "aux_lr"): tuple((lr, lr) for lr in RATES)}
    both = lambda *names: {"ent_coef": ENTROPIES, names: tuple((n,) * len(names) for n in (1, 4))}
    configs = {
        "PPO": (purerl.PPOConfig(**SIZES), {"lr": RATES, **both("num_epochs")}),
        "PPG": (PPG, {**rates, **both("e_pi", "e_v")}),
        "DAAC": (purerl.DAACConfig(**SIZES), {"lr": RATES, **both("e_pi")}),
    }
    cases = {}
    for game, (name, (cfg, grid)) in itertools.product(GAMES, configs.items()):
        first = f"{GAMES[0]}, {name}"
        choice = {"grid": grid} if game == GAMES[0] else {"like": first}
        cases[f"{game}, {name}"] = Case(cfg.replace(env=game), **choice)
    return cases


def passes():
    """Vary epochs of PPG in the direction of its paper: fewer for the policy, more in the auxiliary phase (figures 3 and 5)."""
    cfg = PPG.replace(env="Breakout-MinAtar", lr=2.5e-3, aux_lr=2.5e-3)
    weight = lambda e_pi: cfg.vf_coef if e_pi == cfg.e_v else 1.0  # 1 for a value loss without a policy loss
    label = "Breakout, PPG with e_pi = {}, e_aux = {}"
    passes = ((1, 6), (6, 6), (1, 1))
    return {label.format(p, a): Case(cfg.replace(e_pi=p, e_aux=a, vf_coef=weight(p))) for p, a in passes}


def auxiliary_minibatches():
    """Vary the number of environments in an auxiliary minibatch: all, a quarter of them, and the paper's sixteenth."""
    cfg = PPG.replace(lr=2.5e-3, aux_lr=2.5e-3)
    label = "{}, PPG with minibatches of {} of 64 environments"
    return {label.format(game, n): Case(cfg.replace(env=game, aux_columns=n)) for game in GAMES for n in (64, 16, 4)}


TRIALS = 16  # for each algorithm
RATE = purerl.Range(1e-4, 1e-2, log=True)


def relatives(**changes):
    """Return the configs of PPO, PPG and DAAC, each with the ranges of further fields to tune."""
    configs = {"PPO": purerl.PPOConfig(**SIZES), "PPG": PPG, "DAAC": purerl.DAACConfig(**SIZES)}
    return {name: (cfg.replace(**changes), {"aux_lr": RATE} if name == "PPG" else {}) for name, cfg in configs.items()}


def games():
    """Build cases of five million steps of MinAtar; hyperparameters are tuned on the first game, with a fifth of the steps."""
    cases, first = {}, "Breakout-MinAtar"
    for game, (name, (cfg, ranges)) in itertools.product(
        (first, "SpaceInvaders-MinAtar"), relatives(total_timesteps=5_000_000).items()
    ):
        tuned = {"trials": TRIALS, "ranges": ranges, "tuning_steps": 1_000_000}
        cases[f"{game}, {name}"] = Case(cfg.replace(env=game), **(tuned if game == first else {"like": f"{first}, {name}"}))
    return cases


def distractors():
    """Build cases of Breakout with as many planes of noise as of the game; trials have about a quarter of the steps.

    The first rung of a trial has 1,024 steps of each environment, as many as the longest episode may take.
    """
    from tests.benchmarks.hidden import NoisyBreakout  # gymnax starts JAX; `use_cores` must run first

    return {
        f"Breakout with distractors, {name}": Case(cfg, NoisyBreakout(), trials=TRIALS, ranges=ranges, tuning_steps=2**18)
        for name, (cfg, ranges) in relatives(total_timesteps=1_000_000).items()
    }


def held_out():
    """Build cases with 200 training mazes of 10 x 10 cells, scored in these, for which they are tuned, and in other mazes."""
    cases = {}
    mazes = {"env": "jumanji/Maze-v0", "hidden": (128, 128), "num_levels": 200, "total_timesteps": 500_000}
    for name, (cfg, ranges) in relatives(**mazes).items():
        label = f"200 mazes, {name}, in"
        cases[f"{label} those"] = Case(cfg, trials=TRIALS, ranges=ranges, success=True, training_levels=True)
        cases[f"{label} others"] = Case(cfg, like=f"{label} those", success=True)
    return cases


# --- stale data -------------------------------------------------------------------------------------------------------


def stale():
    """Build cases of PPO, and of APPO with actors 8 updates behind and rollouts that are each used in 4 updates.

    All make four passes over each rollout in minibatches of one size: PPO in one update, APPO one pass in each of four updates.
    """
    case = lambda cfg: Case(cfg, trials=TRIALS, timed=True)
    cases = {}
    for name, sizes in (("CartPole", {"total_timesteps": 250_000}), ("Breakout", {**SIZES, "env": "Breakout-MinAtar"})):
        fresh = purerl.PPOConfig(**sizes)
        old = purerl.APPOConfig(**{**sizes, "num_minibatches": 4 * fresh.num_minibatches}, num_epochs=1, replay=4, lag=8)
        old = old.replace(target_update_freq=1)
        cases[f"{name}: PPO, fresh data"] = case(fresh)
        cases[f"{name}: APPO, stale, target of every update"] = case(old)
        cases[f"{name}: APPO, stale, target every 8 updates"] = case(old.replace(target_update_freq=8))
        cases[f"{name}: stale, no correction"] = case(old.replace(correction="none"))
        cases[f"{name}: APPO, target of every update, no lag"] = case(old.replace(lag=0))
    return cases


# --- curiosity --------------------------------------------------------------------------------------------------------

SEA = purerl.PPOConfig(
    env="DeepSea-bsuite",
    num_envs=8,
    num_steps=100,
    num_minibatches=8,
    lr=5e-4,
    gae_lambda=0.99,
    ent_coef=0.1,
    ent_schedule="linear",
    rnd=purerl.RNDConfig(ext_coef=1.0, init_steps=1600),
)


def sea(size, episodes):
    return SEA.replace(env_kwargs=(("size", size),), total_timesteps=size * episodes)


def curiosity():
    """Compare PPO with and without RND. DeepSea scores the last 100 training episodes; its one rewarded path returns 0.99."""
    cases = {}
    for size, episodes in ((10, 10_000), (14, 30_000), (20, 60_000)):
        cases[f"DeepSea of {size}: PPO with RND"] = Case(sea(size, episodes), last=True)
        cases[f"DeepSea of {size}: PPO"] = Case(sea(size, episodes).replace(rnd=None), last=True)
        little = sea(size, episodes).replace(rnd=None, lr=1e-3, lr_schedule="constant", ent_coef=0.001, ent_schedule="constant")
        cases[f"DeepSea of {size}: PPO, little entropy"] = Case(little.replace(gae_lambda=0.95), last=True)
    rooms = SEA.replace(env="FourRooms-misc", total_timesteps=300_000, normalize_obs=True)
    for name, params in (("FourRooms", {}), ("FourRooms within 40 steps", {"max_steps_in_episode": 40})):
        cfg = rooms.replace(env_params=params)
        cases |= {f"{name}: PPO with RND": Case(cfg), f"{name}: PPO": Case(cfg.replace(rnd=None))}
    return cases


def pretraining():
    """Compare training with rewards from scratch and after as many steps of pretraining without rewards."""
    cfg = sea(14, 5_000)
    only = lambda **coefs: cfg.replace(rnd=cfg.rnd.replace(**coefs))
    blind, greedy = only(ext_coef=0.0), only(int_coef=0.0)
    return {
        "DeepSea of 14: pretrained without rewards, then PPO": Case(greedy, before=blind),
        "DeepSea of 14: pretrained without rewards, then with RND": Case(cfg, before=blind),
        "DeepSea of 14: PPO from scratch": Case(greedy),
        "DeepSea of 14: PPO with RND from scratch": Case(cfg),
    }


def keys():
    """Build cases of a task with a key, a door and a goal, in which only reaching the goal is rewarded.

    The first two are tuned on Navix 0.7.4. Those with "Navix 4" need Python 3.12, and have the same hyperparameters.
    """
    plain = purerl.preset("navix/Navix-DoorKey-5x5-v0").replace(env="navix/Navix-DoorKey-8x8-v0", total_timesteps=1_000_000)
    curious = plain.replace(rnd=purerl.RNDConfig(ext_coef=1.0, int_coef=0.3))
    weight = {"rnd.int_coef": purerl.Range(0.01, 1.0, log=True)}
    cases = {
        "DoorKey of 8: PPO": Case(plain, trials=TRIALS, success=True),
        "DoorKey of 8: PPO with RND": Case(curious, trials=TRIALS, ranges=weight, success=True),
    }
    cfgs = {"PPO": plain, "PPO with RND": curious}
    return cases | {f"DoorKey of 8, Navix 4: {x}": Case(cfg, like=f"DoorKey of 8: {x}", success=True) for x, cfg in cfgs.items()}


# --- defaults ---------------------------------------------------------------------------------------------------------


def defaults():
    """Compare the defaults with the defaults for discrete actions, on tasks with continuous actions."""
    same = {"ent_coef": 0.01, "normalize_obs": False, "normalize_reward": False}
    cases = {}
    for env in ("Pendulum-v1", "MountainCarContinuous-v0", "Reacher-misc", "Swimmer-misc"):
        cfg = purerl.PPOConfig(env=env, total_timesteps=500_000)
        cases |= {f"{env}, defaults": Case(cfg), f"{env}, defaults for discrete actions": Case(cfg.replace(**same))}
    return cases


def value_clip():
    """Compare defaults with and without a value clip on gymnax's environments; with discrete actions also for scaled rewards.

    Pong's network has 2.2 million parameters. Eight seeds of 100,000 steps take half an hour on two cores.
    """
    cases = {}
    for env in REFERENCES:
        for choice in ("max", "none"):
            cfg = purerl.PPOConfig(env=env, total_timesteps=100_000 if env == "Pong-misc" else 500_000, value_clip=choice)
            cases[f"{env}, {choice}"] = Case(cfg)
            if not env.startswith(("Pendulum", "MountainCarContinuous", "PointRobot", "Reacher", "Swimmer")):
                cases[f"{env}, {choice}, scaled rewards"] = Case(cfg.replace(normalize_reward=True, reward_clip=10.0))
    return cases


# --- suites -----------------------------------------------------------------------------------------------------------


def suites():
    """Build cases of each suite with presets; needs `pip install '.[suites]'`, and navix for navix's tasks.

    Craftax and games are scored on the last 100 training episodes, and compared with random actions and with purejaxrl's PPO at
    as many steps. purejaxrl has no action masks. Its learning rate is chosen from two or three values.
    """
    cases = {name: Case(purerl.preset(name)) for name in ("brax/inverted_pendulum", "brax/reacher", "playground/CartpoleBalance")}
    for name in ("xminigrid/MiniGrid-DoorKey-5x5", "navix/Navix-DoorKey-5x5-v0"):
        cases[f"{name}, share of successes"] = Case(purerl.preset(name), success=True)
    for name in ("craftax/Craftax-Classic-Symbolic-v1", "pgx/minatar-breakout", "jumanji/Snake-v1", "jumanji/Game2048-v1"):
        cfg = purerl.preset(name)
        random = cfg.replace(warmup_steps=cfg.total_timesteps, torso="mlp", hidden=(8,), num_epochs=1, num_minibatches=1)
        cases[name] = Case(cfg, last=True)
        cases[f"{name}, random actions"] = Case(random, last=True)
        rates = (2.5e-4, 1e-3) if name.startswith("craftax") else (2.5e-4, 1e-3, 5e-3)
        cases[f"{name}, purejaxrl's PPO"] = Case(cfg, purejaxrl=True, grid={"lr": rates})
    return cases


def published():
    """Build cases of Playground's tasks with its published settings, for the first two updates (2 M steps), with one seed."""
    cases = {}
    for name in ("CartpoleSwingup-published", "CheetahRun", "WalkerWalk"):
        cfg = purerl.preset(f"playground/{name}")
        cases[name.removesuffix("-published")] = Case(cfg.replace(total_timesteps=2 * cfg.batch_size), seeds=range(1))
    return cases


def levels():
    """Vary the number of training mazes of 10 x 10 cells; score the share of mazes solved, in training mazes and in others."""
    cfg = purerl.PPOConfig(
        env="jumanji/Maze-v0", total_timesteps=500_000, num_envs=64, num_steps=32, num_minibatches=8, lr=1e-3, hidden=(128, 128)
    )
    cfg = cfg.replace(torso="mlp", activation="relu")
    cases = {}
    for count in (20, 200, 2000):
        few = cfg.replace(num_levels=count)
        cases[f"{count:,} mazes, in those"] = Case(few, success=True, training_levels=True)
        cases[f"{count:,} mazes, in others"] = Case(few, success=True)
    return cases


STUDIES = {
    "defaults": defaults,
    "value clip": value_clip,
    "memory": chains,
    "long memory": long_chains,
    "remembering": remembering,
    "corridors": corridors,
    "hidden": hidden,
    "phases": phases,
    "passes": passes,
    "auxiliary minibatches": auxiliary_minibatches,
    "games": games,
    "distractors": distractors,
    "held out": held_out,
    "stale": stale,
    "curiosity": curiosity,
    "keys": keys,
    "pretraining": pretraining,
    "suites": suites,
    "published": published,
    "levels": levels,
}
