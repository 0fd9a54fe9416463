"""Fields that an object replaces."""

import pytest

import purerl
from purerl import PPOConfig
from tests.helpers.probes import Varied
from tests.ideas.games import games


def test_fields_replaced_by_an_object_are_refused_or_warn():
    kwargs = PPOConfig(env_kwargs=(("size", 12),))
    says = r"env_kwargs = \(\('size', 12\),\): apply only to an environment id"
    for env in (Varied(), games):
        with pytest.raises(purerl.ConfigError, match=says):
            purerl.make_train(kwargs.replace(num_envs=6), env=env)
    assert "env_kwargs" in purerl.check_env(Varied(), env_kwargs=(("size", 12),)).problems[0]
    with pytest.warns(UserWarning, match="env = 'Pendulum-v1': has no effect, since env= replaces this field"):
        purerl.make_train(PPOConfig(env="Pendulum-v1"), env=Varied())
    from_command = PPOConfig(
        env="tests.helpers.probes:Varied", env_kwargs=(("size", 12),)
    )  # the command line has made env from it
    assert purerl.make_train(from_command, env=Varied()).cfg.env_kwargs
