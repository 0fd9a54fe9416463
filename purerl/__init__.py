"""purerl: PPO-family training as one pure JAX function.

- `make_train(cfg)` returns a pure function from a random key to a trained agent, for `jax.jit` and `jax.vmap`. `cfg` is a
  `PPOConfig`, `PPGConfig`, `DAACConfig` or `APPOConfig`; the help text of each class lists its fields.
- `fit(cfg, directory=...)` trains with logs, evaluations and checkpoints; `load(directory)` returns the trained run.
- `sweep`, `tune` and `compare` train and compare many runs.
- `check_env` checks a custom environment; `wrap_env`, `from_gymnasium`, `from_linen` and `from_nnx` adapt custom parts.

Recipes, as notebooks with their results; there is a [list of all notebooks](../notebooks/README.md):

- [your own algorithm](../notebooks/07_your_own_algorithm.ipynb)
- [populations](../notebooks/12_populations.ipynb)
- [distillation](../notebooks/13_distillation.ipynb)
- [self-play](../notebooks/14_self_play.ipynb)
- [ONNX](../notebooks/15_onnx.ipynb)
- [a reference policy, and symmetry](../notebooks/16_reference_and_symmetry.ipynb)
- [randomised parameters](../notebooks/17_randomised_parameters.ipynb)
- [several agents](../notebooks/18_several_agents.ipynb)
- [level replay](../notebooks/19_level_replay.ipynb)
"""

from purerl.algorithms.ppo import ppo, ppo_phases
from purerl.config.algorithms import APPOConfig, DAACConfig, PPGConfig, PPOConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.fields import configclass, leaf, static
from purerl.config.presets import preset
from purerl.config.randomization import Normal, Scale, Uniform
from purerl.config.value_checks import validate
from purerl.core import reductions
from purerl.core.environment import Environment, TimeStep
from purerl.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMismatch,
    ConfigError,
    DirectoryLocked,
    EnvironmentFailed,
    NotFiniteError,
)
from purerl.core.metrics import summarize
from purerl.core.spaces import Box, Discrete, Indices, Mixed, MultiBinary, MultiDiscrete
from purerl.core.types import Advantages, Network, Outputs, Sample, TrainState, Transition
from purerl.envs import from_gymnasium
from purerl.envs.conformance import check_env
from purerl.envs.functions import wrap_env
from purerl.envs.versus import versus
from purerl.learning import advantages, losses
from purerl.learning.phases import Phase, make_phase
from purerl.learning.update import Algorithm
from purerl.networks import distributions
from purerl.networks.foreign import from_linen, from_nnx
from purerl.pure import Train
from purerl.runs.analysis.export import export
from purerl.runs.analysis.plots import plot
from purerl.runs.analysis.rendering import render
from purerl.runs.analysis.statistics import interval, iqm
from purerl.runs.devices.data_parallel import data_parallel
from purerl.runs.devices.over_devices import over_devices, use_cores
from purerl.runs.fit import FitResult, fit
from purerl.runs.logging import recorders
from purerl.runs.run import Run, load, restore, save
from purerl.runs.stopping import at_return
from purerl.studies.compare import compare
from purerl.studies.comparison import Comparison
from purerl.studies.space import Range
from purerl.studies.sweep import sweep
from purerl.studies.tune import TuneResult, tune
from purerl.train import make_train

__version__ = "0.4.0"
__docformat__ = "google"
__all__ = ["Train", "TrainState", "make_train", "summarize"]
__all__ += ["APPOConfig", "DAACConfig", "PPGConfig", "PPOConfig", "RNDConfig", "preset"]
__all__ += ["configclass", "leaf", "static", "validate"]
__all__ += ["FitResult", "Run", "at_return", "fit", "load", "recorders", "restore", "save"]
__all__ += ["data_parallel", "export", "over_devices", "plot", "render", "use_cores"]
__all__ += ["Comparison", "Range", "TuneResult", "compare", "interval", "iqm", "sweep", "tune"]
__all__ += ["Environment", "Normal", "Scale", "TimeStep", "Uniform", "check_env", "from_gymnasium", "versus", "wrap_env"]
__all__ += ["Box", "Discrete", "Indices", "Mixed", "MultiBinary", "MultiDiscrete"]
__all__ += ["Network", "Outputs", "distributions", "from_linen", "from_nnx"]
__all__ += ["Algorithm", "Phase", "advantages", "losses", "make_phase", "ppo", "ppo_phases", "reductions"]
__all__ += ["Advantages", "Sample", "Transition"]
__all__ += ["CheckpointCorrupt", "CheckpointError", "CheckpointMismatch", "ConfigError"]
__all__ += ["DirectoryLocked", "EnvironmentFailed", "NotFiniteError"]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
