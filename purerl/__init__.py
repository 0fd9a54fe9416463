"""purerl: PPO-family training as one pure JAX function."""

from purerl import recorders as recorders
from purerl.config import APPOConfig as APPOConfig
from purerl.config import DAACConfig as DAACConfig
from purerl.config import PPGConfig as PPGConfig
from purerl.config import PPOConfig as PPOConfig
from purerl.devices import over_devices as over_devices
from purerl.devices import use_cores as use_cores
from purerl.directory import Run as Run
from purerl.directory import load as load
from purerl.directory import restore as restore
from purerl.directory import save as save
from purerl.errors import CheckpointCorrupt as CheckpointCorrupt
from purerl.errors import CheckpointError as CheckpointError
from purerl.errors import CheckpointMismatch as CheckpointMismatch
from purerl.errors import ConfigError as ConfigError
from purerl.errors import DirectoryLocked as DirectoryLocked
from purerl.errors import NotFiniteError as NotFiniteError
from purerl.fields import validate as validate
from purerl.fit import FitResult as FitResult
from purerl.fit import fit as fit
from purerl.metrics import summarize as summarize
from purerl.on_policy import RNDConfig as RNDConfig
from purerl.presets import preset as preset
from purerl.train import Train as Train
from purerl.train import make_train as make_train
from purerl.types import Advantages as Advantages
from purerl.types import MultiBinary as MultiBinary
from purerl.types import MultiDiscrete as MultiDiscrete
from purerl.types import Network as Network
from purerl.types import Outputs as Outputs
from purerl.types import Transition as Transition

__version__ = "0.3.0"
