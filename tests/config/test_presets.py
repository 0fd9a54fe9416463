import jax
import pytest

import purerl
from purerl.config.presets import PRESETS
from purerl.envs.suites import SUITES


@pytest.mark.slow
@pytest.mark.each_landing(*(name for name in PRESETS if "/" not in name), "pgx/minatar-breakout")
@pytest.mark.parametrize("name", PRESETS)
def test_make_train_accepts_every_preset(name):
    if "/" in name:
        pytest.importorskip(SUITES[name.partition("/")[0]])
    cfg = purerl.preset(name)
    assert cfg.env == name
    with jax.numpy_rank_promotion("allow"):  # some suites rely on rank promotion
        assert purerl.make_train(cfg).plan.env_steps >= cfg.total_timesteps


def test_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(purerl.ConfigError, match="did you mean 'Breakout-MinAtar'"):
        purerl.preset("Breakout")
