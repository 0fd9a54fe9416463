"""purerl: PPO-family training as one pure JAX function."""

from purerl.algorithms.ppo import ppo, ppo_phases
from purerl.config.algorithms import APPOConfig, DAACConfig, PPGConfig, PPOConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.fields import configclass, leaf, static
from purerl.config.presets import preset
from purerl.config.value_checks import validate
from purerl.core import reductions
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
from purerl.core.spaces import Box, Discrete, Indices, MultiBinary, MultiDiscrete
from purerl.core.types import Advantages, Environment, Network, Outputs, Sample, TimeStep, TrainState, Transition
from purerl.envs import from_gymnasium
from purerl.envs.conformance import check_env
from purerl.envs.functions import wrap_env
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
from purerl.runs.data_parallel import data_parallel
from purerl.runs.devices import over_devices, use_cores
from purerl.runs.fit import FitResult, fit
from purerl.runs.logging import recorders
from purerl.runs.run import Run, load, restore, save
from purerl.runs.stopping import at_return
from purerl.studies.compare import compare
from purerl.studies.comparison import Comparison
from purerl.studies.space import Range
from purerl.studies.sweep import sweep
from purerl.studies.tune import Tuned, tune
from purerl.train import make_train

__version__ = "0.4.0"
__docformat__ = "google"
__all__ = [
    "APPOConfig",
    "Advantages",
    "Algorithm",
    "Box",
    "CheckpointCorrupt",
    "CheckpointError",
    "CheckpointMismatch",
    "Comparison",
    "ConfigError",
    "DAACConfig",
    "DirectoryLocked",
    "Discrete",
    "Environment",
    "EnvironmentFailed",
    "FitResult",
    "Indices",
    "MultiBinary",
    "MultiDiscrete",
    "Network",
    "NotFiniteError",
    "Outputs",
    "PPGConfig",
    "PPOConfig",
    "Phase",
    "RNDConfig",
    "Range",
    "Run",
    "Sample",
    "TimeStep",
    "Train",
    "TrainState",
    "Transition",
    "Tuned",
    "advantages",
    "at_return",
    "check_env",
    "compare",
    "configclass",
    "data_parallel",
    "distributions",
    "export",
    "fit",
    "from_gymnasium",
    "from_linen",
    "from_nnx",
    "interval",
    "iqm",
    "leaf",
    "load",
    "losses",
    "make_phase",
    "make_train",
    "over_devices",
    "plot",
    "ppo",
    "ppo_phases",
    "preset",
    "recorders",
    "reductions",
    "render",
    "restore",
    "save",
    "static",
    "summarize",
    "sweep",
    "tune",
    "use_cores",
    "validate",
    "wrap_env",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
