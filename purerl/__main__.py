"""Run the command `purerl` as `python -m purerl`."""

import sys

from purerl.cli.command import main

sys.exit(main())
