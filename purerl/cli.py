"""The command line: one subcommand an algorithm, its flags made from the fields of the algorithm's config."""

import argparse
import dataclasses
import json
import sys
from typing import Any, Literal

import tyro

from purerl.config import PPOConfig
from purerl.errors import ConfigError
from purerl.fields import Config
from purerl.fit import fit
from purerl.presets import preset
from purerl.recorders import LiveLine, closing_table

DESCRIPTION = "Trains agents of the PPO family."
ALGORITHMS: dict[str, type[Config]] = {"ppo": PPOConfig}

# Where a flag cannot have the type of its field: text can be a whole number written as 1e6, and pairs are a sequence of words.
FLAG_TYPES = {"total_timesteps": int | float, "env_kwargs": dict[str, str], "env_params": dict[str, float]}


@dataclasses.dataclass(kw_only=True)
class Run:
    """What a command needs beside the config.

    Attributes:
        preset: Environment whose tuned config the other flags change; see `purerl.presets`.
        seed: Seed of the first run.
        num_seeds: Runs side by side, with the seeds that follow, spread over the devices or the cores.
        exact: Every one of several seeds has the bits of its run alone, for about a tenth of the speed.
    """

    preset: str = ""
    seed: int = 0
    num_seeds: int = 1
    exact: bool = False


def main(args: list[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, or 2 where the config cannot be trained."""
    args = sys.argv[1:] if args is None else args
    try:
        base = _preset(args)
        flags = {name: _flags(name, base or cls()) for name, cls in ALGORITHMS.items()}
        chosen = tyro.extras.subcommand_cli_from_dict(flags, prog="purerl", description=DESCRIPTION, args=args)
        return _train(_config(ALGORITHMS[type(chosen).__name__], chosen), chosen)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _train(cfg: Config, run: Run) -> int:
    with LiveLine() as live_line:
        result = fit(cfg, run.seed, num_seeds=run.num_seeds, exact=run.exact, recorders=(live_line,))
    live_line.console.print(closing_table(result, run.seed))
    return 0


def _preset(args: list[str]) -> Config | None:
    """The config that the flags start from; it has to be known before they are made."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    name = parser.parse_known_args(args)[0].preset
    return preset(name) if name else None


def _flags(name: str, base: Config) -> type:
    """A dataclass that tyro turns into flags: the fields of the config, its values as defaults, and those of `Run`."""
    parts = [(part, f) for part in (base, Run()) for f in dataclasses.fields(part)]
    fields = [(f.name, _flag_type(f), _default(f.name, getattr(part, f.name))) for part, f in parts]
    attributes = Run.__doc__.split("Attributes:\n")[1]
    documentation = {"__doc__": type(base).__doc__.rstrip() + "\n" + attributes}
    return dataclasses.make_dataclass(name, fields, kw_only=True, namespace=documentation)


def _flag_type(field: dataclasses.Field) -> Any:
    choices = field.metadata["rule"].choices if "rule" in field.metadata else ()
    return Literal[choices] if choices else FLAG_TYPES.get(field.name, field.type)


def _default(name: str, value: Any) -> Any:
    if name == "env_kwargs":
        value = {argument: json.dumps(x) for argument, x in value}
    return dataclasses.field(default_factory=value.copy) if isinstance(value, dict) else dataclasses.field(default=value)


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
