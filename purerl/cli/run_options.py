"""The options of training and tuning beside the config."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(kw_only=True)
class Training:
    """The options of a training command beside the config.

    Run:
        preset: Environment whose tuned config is the default of the other flags.
        config: TOML file of flags, underscores for dashes. Flags of the command line take precedence.
        seed: Seed of the first run.
        num_seeds: Runs side by side, with the seeds that follow, spread over the devices or the cores.
        exact: Every one of several seeds has the bits of its run alone. Seeds of one device then train one after the other.
        devices_per_run: Devices that the environments of one agent are spread over; 0 for as many as a resumed run had, else 1.
        distributed: This is one of several processes, such as of srun, that train together; JAX finds the others.
        coordinator: Where JAX does not find them, host:port of the first process.
        num_processes: Likewise, how many there are.
        process_id: Likewise, which one this is, from 0.
        directory: Where checkpoints, metrics (also for TensorBoard) and evaluations go; none without.
        resume: Resume from the directory's newest checkpoint: `auto` if there is one, `must`, or `never`.
        init_from: Directory of another run, whose parameters this one starts from.
        sweep: Values of a flag to try, all combinations side by side: --sweep lr=1e-4,3e-4 --sweep hidden=64x64,256x256.
        draws: So many draws from the values of --sweep, which may then be ranges: --sweep lr=1e-5:1e-2:log.
        at_once: Configs of a sweep in one program, at most; 0 for as many as memory holds.
        algorithm: An algorithm of your own, package.module:function.
        max_hours: End saved after this many hours, with exit status 75; 0 for no limit.
        save_seconds: About how long between two checkpoints.
        save_every: A checkpoint at each k-th update as well; 0 for none.
        keep: Newest checkpoints to keep.
        keep_every: Save a checkpoint at each k-th update too, and keep those for ever; 0 for none.
        write_every: Updates in a row of the files; 0 writes one about each second.
        eval_every: Evaluate before the first update and after each k-th; 0 never.
        eval_episodes: Episodes of an evaluation.
        eval_deterministic: Evaluate the most likely actions instead of random ones.
        render_every: Of the evaluations, one in k draws an episode into the directory; 0 for none.
        stop_at_return: End the run, saved, once the mean return of all seeds is this high, asked at evaluations and --stop-every.
        stop_every: Ask --stop-at-return after each k-th update too; 0 for at evaluations alone.
        csv: Also write metrics.csv into the directory.
        json_lines: Also write metrics.jsonl into the directory, one JSON object per row.
        wandb: Weights & Biases project to log to; none without.
    """

    preset: str = ""
    config: str = ""
    seed: int = 0
    num_seeds: int = 1
    exact: bool = False
    devices_per_run: int = 0
    distributed: bool = False
    coordinator: str = ""
    num_processes: int = 0
    process_id: int = -1
    directory: str = ""
    resume: Literal["auto", "must", "never"] = "auto"
    init_from: str = ""
    sweep: tuple[str, ...] = ()
    draws: int = 0
    at_once: int = 0
    algorithm: str = ""
    max_hours: float = 0.0
    save_seconds: float = 30.0
    save_every: int = 0
    keep: int = 3
    keep_every: int = 0
    write_every: int = 0
    eval_every: int = 0
    eval_episodes: int = 128
    eval_deterministic: bool = False
    render_every: int = 0
    stop_at_return: float | None = None
    stop_every: int = 0
    csv: bool = False
    json_lines: bool = False
    wandb: str = ""


@dataclasses.dataclass(kw_only=True)
class Tuning:
    """The options of a tuning command beside the config.

    Run:
        preset: Environment whose tuned config is the default of the other flags.
        config: TOML file of flags, underscores for dashes. Flags of the command line take precedence.
        param: What to tune: --param lr=1e-5:1e-2:log --param ent_coef=0:0.05 --param num_steps=32,64,128; without it lr,
          ent_coef, gamma, gae_lambda and num_steps, over wide ranges.
        trials: How many settings to try.
        num_seeds: Seeds of each.
        directory: Where the study is kept, which the same command continues; none without.
        rungs: Into which training is cut; after each, the worse half of the trials so far stops.
        at_once: Trials in one program; 0 for as many as suit the number of trials, 16 at most.
        finalists: Trials that are trained again, with other seeds, of which the best wins.
        final_seeds: Seeds of the winner, which no choice has seen.
        seed: The first seed.
        search_hours: Begin no further trials after this many hours; 0 for no limit.
        max_hours: End saved after this many hours, with exit status 75; 0 for no limit.
        algorithm: An algorithm of your own, package.module:function.
    """

    preset: str = ""
    config: str = ""
    param: tuple[str, ...] = ()
    trials: int = 64
    num_seeds: int = 4
    directory: str = ""
    rungs: int = 3
    at_once: int = 0
    finalists: int = 4
    final_seeds: int = 8
    seed: int = 0
    search_hours: float = 0.0
    max_hours: float = 0.0
    algorithm: str = ""
