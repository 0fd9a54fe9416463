import jax
import pytest

import purerl
from purerl.config.presets import PRESETS
from purerl.envs.suites import SUITES

SUITES_SLOW = [pytest.param(name, marks=pytest.mark.slow) if "/" in name else name for name in PRESETS]


@pytest.mark.parametrize("name", SUITES_SLOW)
def test_every_preset_can_be_trained(name):
    if "/" in name:
        pytest.importorskip(SUITES[name.partition("/")[0]])
    cfg = purerl.preset(name)
    assert cfg.env == name
    with jax.numpy_rank_promotion("allow"):  # some suites rely on it
        assert purerl.make_train(cfg).plan.env_steps >= cfg.total_timesteps


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(purerl.ConfigError, match="did you mean 'Breakout-MinAtar'"):
        purerl.preset("Breakout")
