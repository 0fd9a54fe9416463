"""The options of training and tuning that are not fields of the config, and help texts for values as they are written in a shell.

Environment:
    env: Environment id, in gymnax or in another suite (brax/ant), or package.module:Class of a custom environment.
    env_kwargs: Arguments of the environment's constructor, names and values: --env-kwargs size 12 for DeepSea-bsuite. The other
      arguments of a preset or file stay.
    env_params: Overrides of the environment's parameters, names and values: --env-params max_steps_in_episode 200. The other
      overrides of a preset or file stay.
    randomize: Parameters of the environment that each episode samples, names and distributions: --randomize gravity 8:12 for
      all numbers between 8 and 12, --randomize gravity normal:9.8:0.5 for a mean and a standard deviation, --randomize body_mass
      scale:0.8:1.2 for a factor of a float or of all numbers of an array. The other parameters of a preset or file stay.

Rollout:
    total_timesteps: Environment steps over all environments, rounded up to whole updates: 500000, 5e5, 500k or 0.5M.

Network:
    torso: mlp, cnn (MinAtar-sized images), nature_cnn (84 x 84 images; with --hidden 512), or auto: cnn or nature_cnn for images
      (height, width, channels), by their size, and mlp for other observations.
    hidden: Widths of the hidden layers, in order; for images, of the layers after the convolutions.
    critic_hidden: Widths of the value network's hidden layers; by default the widths in --hidden.

Memory:
    memory_inputs: Further inputs of the recurrent network: action, reward or both, of the previous step.

Curiosity:
    rnd: Intrinsic rewards by random network distillation, in addition to the environment's rewards.
"""

import math

from purerl.config.fields import Config, configclass, leaf, static
from purerl.config.rules import one_of


@configclass
class Options(Config):
    """The options that training and tuning share.

    Run:
        preset: Environment whose tuned config gives the defaults of the other flags.
        config: TOML file of flags, with underscores for dashes. Flags of the command line take precedence.
        algorithm: Custom algorithm, package.module:function.
    """

    preset: str = static("")
    config: str = static("")
    seed: int = static(0)
    num_seeds: int = static(1)
    directory: str = static("")
    at_once: int = static(0)
    algorithm: str = static("")
    max_hours: float = leaf(0.0)


@configclass
class Training(Options):
    """The options of a training command that are not fields of the config.

    - purerl ppo --env CartPole-v1 --total-timesteps 5e5
    - purerl ppo --env CartPole-v1 --lr 1e-3 --num-seeds 8 --directory runs/a --eval-every 50
    - purerl ppo --config flags.toml --seed 1

    Run:
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
        draws: Number of configs to sample from the values of --sweep, which can then be ranges: --sweep lr=1e-5:1e-2:log; 0 for
          all combinations.
        at_once: Largest number of configs of a sweep in one compiled program; 0 for as many as fit into memory.
        max_hours: End and save the run after this many hours, with exit status 75; 0 for no limit.
        save_seconds: Approximate seconds between two checkpoints.
        save_every: Number of updates between additional checkpoints; 0 for none.
        keep: Number of newest checkpoints to keep.
        keep_every: Number of updates between additional checkpoints that are kept forever; 0 for none.
        write_every: Updates per row of metrics (TensorBoard, CSV, JSON lines, W&B); 0 writes a row about every second, less often
          in long runs.
        eval_every: Updates between evaluations; 0 for none. There is one before the first update and one after the last.
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

    exact: bool = static(False)
    devices_per_run: int = static(0)
    distributed: bool = static(False)
    coordinator: str = static("")
    num_processes: int = static(0)
    process_id: int = static(-1)
    resume: str = static("auto", one_of("auto", "must", "never"))
    init_from: str = static("")
    init_groups: tuple[str, ...] = static(())
    continue_steps: bool = static(False)
    sweep: tuple[str, ...] = static(())
    draws: int = static(0)
    save_seconds: float = leaf(30.0)
    save_every: int = static(0)
    keep: int = static(3)
    keep_every: int = static(0)
    write_every: int = static(0)
    eval_every: int = static(0)
    eval_episodes: int = static(128)
    eval_deterministic: bool = static(False)
    best_by: str = static("episode_return")
    render_every: int = static(0)
    stop_at_return: float = leaf(math.inf)
    stop_every: int = static(0)
    csv: bool = static(False)
    json_lines: bool = static(False)
    wandb: str = static("")


@configclass
class Tuning(Options):
    """The options of a tuning command that are not fields of the config.

    - purerl tune ppo --env Acrobot-v1 --directory runs/t
    - purerl tune ppo --env Acrobot-v1 --trials 64 --num-seeds 4 --param lr=1e-5:1e-2:log --param num_steps=32,64,128
    - purerl ppo --config runs/t/best.toml

    Run:
        param: Values of a field to try: --param lr=1e-5:1e-2:log --param ent_coef=0:0.05 --param num_steps=32,64,128; by default
          wide ranges of lr, ent_coef, gamma and gae_lambda, and two values of num_steps, of those that no flag sets.
        trials: Number of configs to try.
        num_seeds: Seeds per trial.
        directory: Directory of the study, which the same command continues; without it nothing is saved.
        rungs: Number of rungs of training; after each rung but the last, trials below the median score so far stop.
        at_once: Largest number of trials that train side by side; 0 for a number that depends on --trials, at most 16.
        finalists: Number of best trials that are trained again with other seeds; the best finalist wins.
        final_seeds: Number of seeds for the winner's reported score; the search does not use these seeds.
        seed: First seed.
        search_hours: Begin no new trials after this many hours of training trials; 0 for no limit.
        max_hours: End and save the study after this many hours, with exit status 75; 0 for no limit.
    """

    param: tuple[str, ...] = static(())
    trials: int = static(64)
    num_seeds: int = static(4)
    rungs: int = static(3)
    finalists: int = static(4)
    final_seeds: int = static(8)
    search_hours: float = leaf(0.0)
