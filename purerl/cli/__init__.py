"""The command `purerl`."""

from purerl.cli.command import main

__all__ = ["main"]
