"""Rulesets of XLand-MiniGrid."""

import jax
import numpy as np
import pytest

from purerl import ConfigError
from purerl.envs import make_env
from tests.helpers.suites import installed

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)


@pytest.mark.long
def test_each_reset_draws_a_ruleset(tmp_path, monkeypatch):
    """Rulesets come from a file like the suite's own, of which training uses a part."""
    installed("xminigrid/")
    from xminigrid import benchmarks

    from purerl.envs.suites import xminigrid

    goals = np.tile(np.array([1, 3, 1, 0, 0], np.uint8), (4, 1))
    goals[:, 2] = [1, 2, 3, 4]
    empty = {"rules": np.zeros((4, 1, 7), np.uint8), "init_tiles": np.tile(np.array([3, 1], np.uint8), (4, 1, 1))}
    monkeypatch.setattr(benchmarks, "DATA_PATH", str(tmp_path))
    monkeypatch.setattr(xminigrid, "DATA_PATH", str(tmp_path))
    asked = (("benchmark", "trivial-21k"), ("rulesets", (0, 3)))
    with pytest.raises(ConfigError, match="is not downloaded; run python -c"):
        make_env("xminigrid/XLand-MiniGrid-R1-9x9", asked, {})
    benchmarks.save_bz2_pickle({"goals": goals, "num_rules": np.ones(4, int), **empty}, tmp_path / "trivial_21k")
    env = make_env("xminigrid/XLand-MiniGrid-R1-9x9", asked, {})
    state, _ = env.reset(jax.random.split(KEY, 64))
    assert np.unique(state[0].state.goal_encoding[:, 2]).tolist() == [1, 2, 3]
    for rulesets in ((3, 5), 3, ("a", "b"), (0.0, 3.0), (0, 1, 2)):
        with pytest.raises(ConfigError, match=r"must be two ints .* stop <= 4"):
            make_env("xminigrid/XLand-MiniGrid-R1-9x9", (("benchmark", "trivial-21k"), ("rulesets", rulesets)), {})
