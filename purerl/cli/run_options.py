"""The options of training and tuning that are not fields of the config."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(kw_only=True)
class Training:
    """The options of a training command that are not fields of the config.

    Run:
        preset: Environment whose tuned config gives the defaults of the other flags.
        config: TOML file of flags, with underscores for dashes. Flags of the command line take precedence.
        seed: Seed of the first run.
        num_seeds: Number of parallel runs, with consecutive seeds, spread over the devices; on a CPU, over its cores.
        exact: Make every run bit-identical to the same run alone. Seeds on one device then train one after the other.
        devices_per_run: Number of devices that one agent's environments are spread over; 0 keeps the number of a resumed run, and
          is 1 for a new run.
        distributed: Train together with the other processes of a job, such as a job of srun; JAX finds these processes.
        coordinator: If JAX does not find the other processes, host:port of the first process.
        num_processes: If JAX does not find the other processes, the total number of processes.
        process_id: If JAX does not find the other processes, the index of this process, from 0.
        directory: Directory of checkpoints, metrics (also for TensorBoard) and evaluations; without it nothing is saved.
        resume: `auto` resumes from the directory's newest checkpoint if there is one. `must` fails without a checkpoint,
          and `never` fails if there is one.
        init_from: Directory of another run, whose parameters and statistics this run starts from.
        init_groups: Parts of the parameters to take from --init-from, such as policy/torso and statistics; by default, all.
        continue_steps: Count environment steps from those of --init-from, in recorders and plots.
        sweep: Values of a flag to try, in all combinations with other flags: --sweep lr=1e-4,3e-4 --sweep hidden=64x64,256x256.
        draws: Number of configs to draw from the values of --sweep, which can then be ranges: --sweep lr=1e-5:1e-2:log; 0 for
          all combinations.
        at_once: Largest number of configs of a sweep in one program; 0 for as many as fit into memory.
        algorithm: Custom algorithm, package.module:function.
        max_hours: End and save the run after this many hours, with exit status 75; 0 for no limit.
        save_seconds: Approximate seconds between two checkpoints.
        save_every: Number of updates between additional checkpoints; 0 for none.
        keep: Number of newest checkpoints to keep.
        keep_every: Number of updates between additional checkpoints that are kept forever; 0 for none.
        write_every: Updates per row of metrics (TensorBoard, CSV, JSON lines, W&B); 0 writes a row about every second, less often
          in long runs.
        eval_every: Number of updates between evaluations; 0 for none. The first evaluation is before the first update.
        eval_episodes: Episodes per evaluation.
        eval_deterministic: Evaluate the most likely actions instead of random ones.
        best_by: Metric whose highest mean in an evaluation chooses the best state: episode_return, or an entry such as
          episode_info/success.
        render_every: Number of evaluations between renderings of an episode into the directory; 0 for none.
        stop_at_return: End and save the run once the mean return over all seeds reaches this value. The return is checked after
          evaluations and every --stop-every updates.
        stop_every: Number of updates between additional checks of --stop-at-return; 0 to check only after evaluations.
        csv: Also write metrics.csv into the directory.
        json_lines: Also write metrics.jsonl into the directory, one JSON object per row.
        wandb: Weights & Biases project to log to; without it nothing is logged there.
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
    init_groups: tuple[str, ...] = ()
    continue_steps: bool = False
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
    """The options of a tuning command that are not fields of the config.

    Run:
        preset: Environment whose tuned config gives the defaults of the other flags.
        config: TOML file of flags, with underscores for dashes. Flags of the command line take precedence.
        param: Values of a field to try: --param lr=1e-5:1e-2:log --param ent_coef=0:0.05 --param num_steps=32,64,128; by default
          wide ranges of lr, ent_coef, gamma and gae_lambda, and two values of num_steps.
        trials: Number of configs to try.
        num_seeds: Seeds per trial.
        directory: Directory of the study, which the same command continues; without it nothing is saved.
        rungs: Number of rungs of training; after each rung but the last, trials below the median score so far stop.
        at_once: Number of trials in one program; 0 for as many as suit the number of trials, at most 16.
        finalists: Number of best trials that are trained again with other seeds; the best finalist wins.
        final_seeds: Number of seeds for the winner's reported score; the search does not use these seeds.
        seed: First seed.
        search_hours: Begin no new trials after this many hours of training trials; 0 for no limit.
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
