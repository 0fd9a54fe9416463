"""The commands for saved runs: functions, whose arguments are flags."""

import dataclasses
import os
import pathlib
from typing import Annotated, Literal

import jax
import numpy as np
import tyro

from purerl.cli.by_path import import_objects, import_path
from purerl.core.errors import config_error
from purerl.runs.analysis import plots
from purerl.runs.analysis.export import export
from purerl.runs.analysis.rendering import render
from purerl.runs.compile_cache import cache_directory, cached_programs
from purerl.runs.directory import absolute_path
from purerl.runs.logging.console import LiveLine, evaluation_table, format_count, table_of
from purerl.runs.run import Run, load
from purerl.runs.storage.checkpoint import newest_readable
from purerl.studies.compare import compare
from purerl.studies.listing import list_overviews
from purerl.studies.reading import runs_below


@dataclasses.dataclass
class Reader:
    """Options of commands that read runs.

    Attributes:
        dir: Directory of the run.
        run: One of several runs in the directory: its index from 0, or its label, such as "lr = 0.003, seed 0".
        best: Use the state with the best evaluation instead of the last state.
        env: Custom environment that the run was trained in, package.module:name.
        algorithm: Custom algorithm that the run was trained by, package.module:function.
        config_class: Custom class of the run's config, package.module:Class.
    """

    dir: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR")]
    run: str = ""
    best: bool = False
    env: str = ""
    algorithm: str = ""
    config_class: str = ""

    def load(self) -> Run:
        """Load the runs of the directory, with the objects that the flags name."""
        saved = newest_readable(absolute_path(self.dir) / "checkpoints").record["config"] if ":" in self.env else {}
        env_kwargs = tuple(map(tuple, saved.get("env_kwargs", ())))
        own = import_objects(self.env, self.algorithm, env_kwargs)
        cls = import_path(self.config_class, "config_class") if self.config_class else None
        return load(self.dir, best=self.best, config_class=cls, **own)

    def load_one(self) -> Run:
        """Load the run that --run names, or the first run."""
        return self.load().select(self.run or 0)


def evaluate(reader: Reader, num_episodes: int = 128, deterministic: bool = False, seed: int = 0) -> None:
    """Evaluate every run in a directory, or only the run that --run names, on fresh episodes in the run's environment.

    Args:
        num_episodes: Episodes per run.
        deterministic: Take the most likely actions instead of random ones.
        seed: Seed of the episodes.
    """
    run = reader.load_one() if reader.run else reader.load()
    episodes = jax.tree.map(np.atleast_2d, run.evaluate(num_episodes, seed, deterministic))
    LiveLine().console.print(evaluation_table(episodes, run.labels, run.finished))


def plot_curves(
    dirs: tyro.conf.Positional[tuple[str, ...]],
    out: str = "curves.png",
    metric: str = "episode_return",
    centre: Literal["iqm", "mean"] = "iqm",
) -> None:
    """Plot the learning curves of runs: one line per config, with a band over the config's seeds.

    Args:
        dirs: Directories of the runs to compare, at least one.
        out: File to write.
        metric: Any metric of the runs: episode_return, episode_length, entropy, approx_kl, evaluation/episode_return, ...
        centre: Statistic over seeds: interquartile mean or mean.
    """
    _make_folder(out)
    below = lambda folder: (os.path.isdir(folder) and runs_below(folder)) or [folder]
    directories = [directory for folder in dirs for directory in below(folder)]
    plots.plot(directories, out, metric=metric, centre=centre)
    print(out)


def compare_runs(
    entries: tyro.conf.Positional[tuple[str, ...]],
    score: Literal["final", "auc"] = "final",
    episodes: Literal["training", "evaluation"] = "training",
    reference: str = "",
    out: tuple[str, ...] = (),
) -> None:
    """Compare runs over seeds and tasks: interquartile means, probabilities of improvement, profiles (Agarwal et al. 2021).

    purerl compare runs/ppo runs/ppg compares two folders, each with a run of every task inside. purerl compare new=runs/a,runs/b
    old=runs/c gives names to groups of folders.

    Args:
        entries: Folders of runs, or name=folder,folder.
        score: Mean return over the last tenth of training (or in the last evaluation), or over the whole learning curve.
        episodes: Episodes to score: those of training, or of evaluations.
        reference: TOML or JSON file with two scores per task, which are normalised to 0 and 1: "CartPole-v1" = [20.0, 500.0].
        out: Files to write: .md and .tex tables, .png, .pdf and .svg pictures, .json and .csv with every score.
    """
    named = {}
    for text in entries:
        name, equals, folders = text.partition("=")
        is_named = equals and not os.path.exists(text)
        name = name if is_named else pathlib.Path(text).expanduser().absolute().name
        if name in named:
            hint = f"write {name}=DIR,DIR" if is_named else "give names to the folders: a=DIR b=DIR"
            raise config_error("entries", text, f"{name} is given twice; {hint}")
        named[name] = folders.split(",") if is_named else [text]
        if is_named and not all(named[name]):
            raise config_error("entries", text, "has an empty folder name; write name=DIR,DIR")
    found = compare(named, score=score, episodes=episodes, reference=reference or None)
    console = LiveLine().console
    if found.unequal:
        console.print(found.unequal, highlight=False, markup=False)
    console.print(table_of("interquartile mean (95 % interval)", *found.rows()))
    if list(found.pairs()):
        console.print(table_of("probability of improvement (95 % interval)", *found.pair_rows(), left=2))
    if not found.can_pool:
        console.print("Scores are aggregated over tasks only if they are normalised; use --reference FILE", highlight=False)
    console.print(found.protocol, highlight=False, markup=False)
    for file in out:
        _make_folder(file)
        found.write(file)
        print(file)


def list_runs(folder: tyro.conf.Positional[str] = "runs") -> None:
    """List the runs in a folder: algorithm, environment, steps, best score, how they ended, size.

    Args:
        folder: Folder to search.
    """
    columns = ("run", "algorithm", "environment", "runs", "steps per run", "of", "best return", "state", "MB")
    rows = []
    for run in list_overviews(folder):
        name = str(run.directory.relative_to(pathlib.Path(folder).expanduser()))
        best = "" if np.isnan(run.best) else f"{run.best:.1f}"
        steps, total = (f"{x:,}" if x else "" for x in (run.steps, run.total_steps))
        rows.append([name, run.algorithm, run.task, str(run.runs or ""), steps, total, best, run.state, f"{run.size / 1e6:.1f}"])
    table = table_of(f"{format_count(len(rows), 'run')} in {folder}", columns, rows, left=3)
    table.caption = "best return: the highest mean of a run, over an evaluation or the last tenth of training"
    LiveLine().console.print(table)


def render_episode(reader: Reader, out: str = "agent.gif", deterministic: bool = False, seed: int = 0) -> None:
    """Render an episode of the run that --run names, or of the first run.

    Args:
        out: File to write, a .gif or an .mp4.
        deterministic: Take the most likely actions instead of random ones.
        seed: Seed of the episode.
    """
    _make_folder(out)
    run = reader.load_one()
    with LiveLine().console.status(f"playing an episode of {run.labels[0]}"):
        score = render(run.train, run.state, out, seed=seed, deterministic=deterministic)
    print(f"{out}: an episode of {run.labels[0]}, return {score:.1f}")


def export_policy(reader: Reader, out: str = "policy.jaxexport") -> None:
    """Write the policy of the run that --run names, or of the first run, as a program that needs only jax and flatbuffers.

    Load the program with act = jax.export.deserialize(bytearray(open("policy.jaxexport", "rb").read())).call, and act in any
    number of environments: action, carry = act(carry, obs, first, jax.random.PRNGKey(0), False). All arrays have a leading axis
    of environments. Without a recurrent network, the carry is (). The array first is True where an episode starts. With True as
    the last argument, the actions are the most likely ones.

    Args:
        out: File to write; one that ends in .onnx is an ONNX model of the most likely actions, and needs the extra onnx.
    """
    _make_folder(out)
    run = reader.load_one()
    with LiveLine().console.status(f"tracing the policy of {run.labels[0]}"):
        data = export(run.train, run.state, out)
    print(f"{out}: {run.labels[0]}, {len(data):,} bytes")


def show_cache(clear: bool = False) -> None:
    """Show where compiled programs are cached, and how many. The second start of a run uses these programs and does not compile.

    The environment variable PURERL_CACHE names another directory, or "off". The cache holds at most a gigabyte.

    Args:
        clear: Remove all cached programs.
    """
    directory = cache_directory()
    if directory is None:
        print("off: the environment variable PURERL_CACHE disables the cache")
        return
    if clear:
        for file in (*directory.glob("*-cache"), *directory.glob("*-atime")):
            file.unlink(missing_ok=True)
    programs = cached_programs()
    megabytes = sum(program.stat().st_size for program in programs) / 1e6
    print(f"{directory}: {len(programs)} programs, {megabytes:.0f} MB")


def _make_folder(out: str) -> None:
    """Create the folder of a file to write, before the contents are computed."""
    try:
        pathlib.Path(out).expanduser().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise config_error("out", out, f"the folder cannot be created: {error.strerror}") from error


COMMANDS = {"eval": evaluate, "plot": plot_curves, "compare": compare_runs, "runs": list_runs}
COMMANDS |= {"render": render_episode, "export": export_policy, "cache": show_cache}
