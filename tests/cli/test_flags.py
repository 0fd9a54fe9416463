"""Flags of the fields of a config."""

import purerl
from purerl.cli.flags import config_of, flags_of, job_of, values_of


def test_a_preset_gives_the_defaults_and_flags_change_them():
    base = purerl.preset("Breakout-MinAtar")
    config = lambda cfg, **flags: config_of(purerl.PPOConfig, values_of(flags_of("ppo", vars(cfg), purerl.PPOConfig)()) | flags)
    assert config(base, lr=1.0, preset="Breakout-MinAtar") == base.replace(lr=1.0)
    curious = base.replace(rnd=purerl.RNDConfig(int_coef=0.5, hidden=(8,)))
    assert config(curious) == curious
    with_arguments = base.replace(env_kwargs=(("size", 5), ("name", "5")), env_params={"limit": 3})
    assert config(with_arguments) == with_arguments


def test_a_process_of_a_job_needs_to_know_the_others():
    assert job_of(["ppo", "--num-processes", "2"]) is not None
    assert job_of(["ppo", "--lr", "0.1"]) is None
