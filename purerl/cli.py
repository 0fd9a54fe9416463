"""The command line: one subcommand an algorithm, its flags made from the fields of the algorithm's config."""

import dataclasses
import json
import sys
from typing import Any, Literal

import tyro

from purerl.config import Config, ConfigError, PPOConfig
from purerl.fit import fit
from purerl.recorders import LiveLine, closing_table

ALGORITHMS: dict[str, type[Config]] = {"ppo": PPOConfig}

# Where a flag cannot have the type of its field: text can be a whole number written as 1e6, and pairs are a sequence of words.
FLAG_TYPES = {"total_timesteps": int | float, "env_kwargs": dict[str, str], "env_params": dict[str, float]}


@dataclasses.dataclass(kw_only=True)
class Run:
    """What a command needs beside the config.

    Attributes:
        seed: Seed of the first run.
        num_seeds: Runs side by side in one program, with the seeds that follow.
    """

    seed: int = 0
    num_seeds: int = 1


def main(args: list[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, or 2 where the config cannot be trained."""
    flags = {name: _flags(name, cls) for name, cls in ALGORITHMS.items()}
    chosen = tyro.extras.subcommand_cli_from_dict(flags, prog="purerl", description="Trains agents of the PPO family.", args=args)
    cls = ALGORITHMS[type(chosen).__name__]
    try:
        return _train(_config(cls, chosen), chosen.seed, chosen.num_seeds)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _train(cfg: Config, seed: int, num_seeds: int) -> int:
    with LiveLine() as live_line:
        result = fit(cfg, seed, num_seeds=num_seeds, recorders=(live_line,))
    live_line.console.print(closing_table(result, seed))
    return 0


def _flags(name: str, cls: type[Config]) -> type:
    """A dataclass that tyro turns into flags: the fields of the config, and those of `Run`."""
    fields = [(f.name, _flag_type(f), _default(f)) for f in (*dataclasses.fields(cls), *dataclasses.fields(Run))]
    attributes = Run.__doc__.split("Attributes:\n")[1]
    return dataclasses.make_dataclass(name, fields, kw_only=True, namespace={"__doc__": cls.__doc__.rstrip() + "\n" + attributes})


def _flag_type(field: dataclasses.Field) -> Any:
    choices = field.metadata["rule"].choices if "rule" in field.metadata else ()
    return Literal[choices] if choices else FLAG_TYPES.get(field.name, field.type)


def _default(field: dataclasses.Field) -> Any:
    if FLAG_TYPES.get(field.name) in (dict[str, str], dict[str, float]):
        return dataclasses.field(default_factory=dict)
    return dataclasses.field(default=field.default)


def _config(cls: type[Config], flags: Any) -> Config:
    values = {f.name: getattr(flags, f.name) for f in dataclasses.fields(cls)}
    return cls(**{**values, "env_kwargs": tuple((name, _parse(text)) for name, text in flags.env_kwargs.items())})


def _parse(text: str) -> Any:
    """A number, true, false or null as JSON has them; any other word as it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    sys.exit(main())
