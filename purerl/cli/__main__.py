"""Run the command `purerl` as `python -m purerl.cli`."""

import sys

from purerl.cli.command import main

sys.exit(main())
