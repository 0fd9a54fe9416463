"""The algorithms by name. One from outside is an argument, `make_train(algorithm=)`.

To add one here: its config in `purerl.config.algorithms`, with an entry in `ALGORITHMS` there; a file here, with a function of
the first four arguments of `ppo` that returns an `Algorithm`; and an entry in `MAKERS`. Most are `ppo` with other phases, or with
a function after learning, as `daac` and `ppg` are.
"""

from purerl.algorithms.appo import appo
from purerl.algorithms.daac import daac
from purerl.algorithms.ppg import ppg
from purerl.algorithms.ppo import ppo

MAKERS = {"ppo": ppo, "ppg": ppg, "daac": daac, "appo": appo}
