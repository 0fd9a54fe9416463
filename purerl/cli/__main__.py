"""`python -m purerl.cli` is the command `purerl`."""

import sys

from purerl.cli.command import main

sys.exit(main())
