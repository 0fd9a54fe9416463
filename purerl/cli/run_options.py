"""The options of training and tuning beside the config."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(kw_only=True)
class Training:
    """The options of a training command beside the config.

    Run:
        preset: Environment whose tuned config gives the defaults of the other flags.
        config: TOML file of flags, with underscores for dashes. Flags of the command line take precedence.
        seed: Seed of the first run.
        num_seeds: Number of runs side by side, with consecutive seeds, spread over the devices or the cores.
        exact: Make every run bit-identical to the same run alone. Seeds on one device then train one after the other.
        devices_per_run: Devices that one agent's environments are spread over; 0 for as many as a resumed run had, else 1.
        distributed: Train together with other processes, such as those of srun; JAX finds the others.
        coordinator: If JAX does not find the other processes, host:port of the first one.
        num_processes: If JAX does not find the other processes, the total number of processes.
        process_id: If JAX does not find the other processes, the index of this process, from 0.
        directory: Directory of checkpoints, metrics (also for TensorBoard) and evaluations; without it nothing is saved.
        resume: `auto` resumes from the directory's newest checkpoint if there is one. `must` is an error without a checkpoint,
          and `never` is an error with one.
        init_from: Directory of another run, whose parameters this run starts from.
        sweep: Values of a flag to try, all combinations side by side: --sweep lr=1e-4,3e-4 --sweep hidden=64x64,256x256.
        draws: Number of draws from the values of --sweep, which may then be ranges: --sweep lr=1e-5:1e-2:log.
        at_once: Most configs of a sweep in one program; 0 for as many as fit into memory.
        algorithm: Custom algorithm, package.module:function.
        max_hours: End and save the run after this many hours, with exit status 75; 0 for no limit.
        save_seconds: Approximate seconds between two checkpoints.
        save_every: Also save a checkpoint every k updates; 0 for none.
        keep: Number of newest checkpoints to keep.
        keep_every: Also save a checkpoint every k updates, and keep it for ever; 0 for none.
        write_every: Updates per row of metrics (TensorBoard, CSV, JSON lines, W&B); 0 writes a row about every second.
        eval_every: Evaluate before the first update and every k updates; 0 for never.
        eval_episodes: Episodes per evaluation.
        eval_deterministic: Evaluate the most likely actions instead of random ones.
        best_by: Mean of an evaluation that chooses the best state: episode_return, or episode_info/success for such an entry.
        render_every: At every k-th evaluation, render an episode into the directory; 0 for none.
        stop_at_return: End and save the run once all seeds' mean return is this high, checked at evaluations and --stop-every.
        stop_every: Also check --stop-at-return every k updates; 0 for only at evaluations.
        csv: Also write metrics.csv into the directory.
        json_lines: Also write metrics.jsonl into the directory, one JSON object per row.
        wandb: Weights & Biases project to log to, if any.
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
    best_by: str = "episode_return"
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
        preset: Environment whose tuned config gives the defaults of the other flags.
        config: TOML file of flags, with underscores for dashes. Flags of the command line take precedence.
        param: Values of a field to try: --param lr=1e-5:1e-2:log --param ent_coef=0:0.05 --param num_steps=32,64,128; by default
          lr, ent_coef, gamma, gae_lambda and num_steps, over wide ranges.
        trials: Number of configs to try.
        num_seeds: Seeds per trial.
        directory: Directory of the study, which the same command continues; without it nothing is saved.
        rungs: Number of rungs of training; after each rung, the worse half of the trials so far stops.
        at_once: Trials in one program; 0 for as many as suit the number of trials, at most 16.
        finalists: Number of best trials that are trained again, with other seeds; the best of them wins.
        final_seeds: Number of seeds of the winner's reported score, which no choice has used.
        seed: First seed.
        search_hours: Begin no new trials after this many hours; 0 for no limit.
        max_hours: End and save the study after this many hours, with exit status 75; 0 for no limit.
        algorithm: Custom algorithm, package.module:function.
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
