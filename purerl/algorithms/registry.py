"""The built-in algorithms by name. A custom algorithm is an argument: `make_train(algorithm=...)`.

To add a built-in algorithm, write its config in `purerl.config.algorithms`, with an entry in `ALGORITHMS` there; a file here,
with a function that takes the first four arguments of `ppo` and returns an `Algorithm`; and an entry in `MAKERS`. Most algorithms
are `ppo` with other phases, as `daac` is, or with a function that is called after learning, as `ppg` is.
"""

from purerl.algorithms.appo import appo
from purerl.algorithms.daac import daac
from purerl.algorithms.ppg import ppg
from purerl.algorithms.ppo import ppo

MAKERS = {"ppo": ppo, "ppg": ppg, "daac": daac, "appo": appo}
