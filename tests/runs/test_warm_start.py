"""Warm starts."""

import functools
import json
import warnings
from typing import Any

import jax
import pytest
from flax import linen as nn

import purerl
from purerl.runs.analysis.plots import curves_of
from purerl.runs.storage.checkpoint import Checkpoint, newest_readable
from purerl.runs.warm_start import _groups_that_fit, warm_start, warn_of_other_networks
from tests.helpers.interrupted import fitted
from tests.helpers.probes import Varied, boxed
from tests.helpers.tiny import CFG, digest, tiny


def started(state, directory, groups=()):
    """Return a state with the parameters of the run in a directory."""
    return warm_start(state, newest_readable(directory / "checkpoints"), directory, "either", groups)


@pytest.mark.long
def test_warm_start_copies_only_the_parameters(tmp_path):
    source = fitted(updates=2, directory=tmp_path / "a")
    still = CFG.replace(lr=0.0, lr_final=0.0, gamma=0.9)
    warm = fitted(updates=1, cfg=still, init_from=tmp_path / "a")
    assert digest(warm.state.params) == digest(source.state.params)
    assert int(warm.state.clock) == 1
    several = jax.vmap(tiny().init, out_axes=purerl.Train.seed_axes)(jax.random.split(jax.random.key(0), 2))
    several = started(several, tmp_path / "a")
    assert digest(jax.tree.map(lambda x: x[1], several.params)) == digest(source.state.params)


def test_warm_start_needs_the_same_shapes(tmp_path):
    purerl.save(tmp_path / "a", tiny(), tiny().init(jax.random.key(0)))
    other = tiny(CFG.replace(hidden=(8, 8))).init(jax.random.key(0))
    with pytest.raises(purerl.ConfigError, match=r"init_from.*is \[16, 2\] in the checkpoint, \[8, 2\] here"):
        started(other, tmp_path / "a")
    fewer = tiny(CFG.replace(critic_hidden=(8,))).init(jax.random.key(0))
    with pytest.raises(purerl.ConfigError, match=r"use init_groups=\('policy/head', 'policy/torso'\) to copy"):
        started(fewer, tmp_path / "a")
    with pytest.warns(UserWarning, match="value/head, value/torso begin with new parameters"):
        copied = started(fewer, tmp_path / "a", ("policy/head", "policy/torso"))
    assert digest(copied.params["policy"]) == digest(tiny().init(jax.random.key(0)).params["policy"])
    with pytest.raises(purerl.CheckpointError, match="no checkpoint"):
        started(other, tmp_path / "b")


def test_groups_that_fit_are_named_whole():
    name = "['state'].params['{}']".format
    here = [name("policy"), name("value"), name("predictor']['torso"), "['state'].statistics.obs.mean"]
    assert _groups_that_fit(here, [name("value")]) == ("policy", "predictor", "statistics")
    assert _groups_that_fit(here, here[1:]) == ("policy",)
    assert _groups_that_fit(here[:3], []) == ("policy", "predictor", "value")
    assert _groups_that_fit(here, here[:3]) == ()


@pytest.mark.slow
def test_warm_start_of_groups_names_the_new_parameters(tmp_path):
    source = tiny(CFG.replace(normalize_obs=True))
    purerl.save(tmp_path / "a", source, jax.jit(source)(jax.random.key(0)).state)
    other = tiny(CFG.replace(normalize_obs=True, critic_hidden=(8,)))
    state, saved = other.init(jax.random.key(1)), purerl.restore(tmp_path / "a", source)
    with pytest.warns(UserWarning, match="policy/head, value/head, value/torso begin with new parameters"):
        warm = started(state, tmp_path / "a", ("policy/torso", "statistics"))
    assert digest(warm.params["policy"]["torso"]) == digest(saved.params["policy"]["torso"])
    assert digest(warm.params["policy"]["head"]) == digest(state.params["policy"]["head"])
    assert digest(warm.params["value"]) == digest(state.params["value"])
    assert digest(warm.statistics.obs) == digest(saved.statistics.obs)
    both = tuple({group.split("/")[0] for group in ("policy/torso", "value/head")})
    with pytest.warns(UserWarning, match="the running statistics begin anew"):
        warm = started(source.init(jax.random.key(1)), tmp_path / "a", both)
    assert digest(warm.params) == digest(saved.params)
    with pytest.raises(
        purerl.ConfigError, match="init_groups = 'policy/tor': this run has no such group; choose from policy/head"
    ):
        started(state, tmp_path / "a", ("policy/tor",))
    with pytest.raises(purerl.ConfigError, match="needs init_from"):
        purerl.fit(CFG, init_groups=("policy",))


GROUPS = ("policy", "value")


@pytest.mark.parametrize("field", ["normalize_obs", "normalize_value"])
def test_warm_start_of_groups_names_statistics_that_one_run_has(field, tmp_path):
    plain, normalized = tiny(), tiny(CFG.replace(**{field: True}))
    for i, (source, other) in enumerate([(plain, normalized), (normalized, plain)]):
        purerl.save(tmp_path / str(i), source, source.init(jax.random.key(0)))
        state = other.init(jax.random.key(1))
        with pytest.raises(purerl.ConfigError, match="may compute something else without the statistics"):
            started(state, tmp_path / str(i))
        with pytest.warns(UserWarning, match=f"{field} differs between the runs"):
            started(state, tmp_path / str(i), GROUPS)
    normalized = tiny(CFG.replace(normalize_value=True)).init(jax.random.key(1))
    with pytest.warns(UserWarning, match="begin with new parameters") as told:  # the policy does not read values
        started(normalized, tmp_path / "0", ("policy",))
    assert len(told) == 1


CURIOUS = {"rnd": purerl.RNDConfig(features=4, hidden=(4,), init_steps=0)}


@pytest.mark.slow
@pytest.mark.each_landing("plain")
@pytest.mark.parametrize("more", [{}, CURIOUS], ids=["plain", "rnd"])
def test_warm_start_accepts_another_number_of_environments(more, tmp_path):
    cfg = CFG.replace(normalize_reward=True, total_timesteps=128, **more)
    source = purerl.fit(cfg, directory=tmp_path, env=Varied())
    still = cfg.replace(num_envs=8, lr=0.0, lr_final=0.0)
    moved = {}
    warm = purerl.fit(still, init_from=tmp_path, env=Varied(), measure=lambda state: moved.update(state=state) or {"one": 1.0})
    assert digest(warm.state.params) == digest(source.state.params)
    theirs, ours = (result.state.statistics.reward for result in (source, warm))
    assert ours.discounted.shape == (8,)
    assert int(ours.moments.count.low) == int(theirs.moments.count.low) + 128  # the moments are continued


KEY = jax.random.key(0)


@pytest.mark.slow
def test_warm_start_works_with_an_adaptive_penalty(tmp_path):
    cfg = CFG.replace(kl_penalty="adaptive")
    result = fitted(cfg=cfg, directory=tmp_path)
    warm = started(tiny(cfg).init(KEY), tmp_path)
    assert digest(warm.params) == digest(result.state.params)
    assert warm.extra["kl_coef"] == 1


@pytest.mark.slow
def test_continued_steps_are_counted_from_those_of_the_first_run(tmp_path):
    first = fitted(updates=2, directory=tmp_path / "a")
    before, wide = first.progress.steps, CFG.replace(num_envs=2 * CFG.num_envs, lr_schedule="constant")
    seen = []
    options = {"cfg": wide, "init_from": tmp_path / "a", "continue_steps": True, "recorders": (seen.append,)}
    fitted(updates=2, directory=tmp_path / "b", **options)
    with pytest.warns(UserWarning, match="lost' has no effect, since the run in .* began with init_from = '"):
        fitted(updates=4, directory=tmp_path / "b", **options | {"init_from": tmp_path / "lost", "continue_steps": False})
    assert [progress.steps_of_run() for progress in seen] == [before + 2 * CFG.batch_size, before + 4 * CFG.batch_size]
    (curve,) = curves_of(tmp_path / "b")
    assert curve.steps.tolist() == [before + 2 * CFG.batch_size, before + 4 * CFG.batch_size]
    third = fitted(updates=1, init_from=tmp_path / "b", continue_steps=True)
    assert third.progress.steps_of_run() == before + 5 * CFG.batch_size
    with pytest.raises(purerl.ConfigError, match="continue_steps = True: needs init_from"):
        purerl.fit(CFG, continue_steps=True)


@pytest.mark.slow
def test_configs_are_not_taken_for_seeds(tmp_path):
    two = jax.vmap(lambda lr: CFG.replace(lr=lr))(jax.numpy.array([1e-3, 1e-2]))
    fitted(updates=1, directory=tmp_path / "a", cfg=two)
    with pytest.raises(purerl.ConfigError, match=r"has runs of 2 config\(s\) with 1 seed\(s\), but this call has 1 config"):
        fitted(updates=1, init_from=tmp_path / "a", num_seeds=2)
    fitted(updates=1, init_from=tmp_path / "a", cfg=two, seed=5)
    fitted(updates=1, directory=tmp_path / "b", num_seeds=3)
    with pytest.raises(
        purerl.ConfigError, match=r"runs of 1 config\(s\) with 3 seed\(s\), but this call has .* with 2 seed\(s\)"
    ):
        fitted(updates=1, init_from=tmp_path / "b", num_seeds=2)


@pytest.mark.slow
def test_another_start_of_an_existing_run_warns(tmp_path):
    for name in ("a", "b"):
        fitted(updates=1, directory=tmp_path / name)
    for _ in range(2):
        fitted(updates=2, directory=tmp_path / "c", init_from=tmp_path / "a")
    with pytest.warns(UserWarning, match=r"init_from = .* has no effect, since the run in .* began with init_from = '.*a'"):
        fitted(updates=2, directory=tmp_path / "c", init_from=tmp_path / "b")
    with pytest.warns(UserWarning, match="has no effect, since the run in .* began with init_from = None"):
        fitted(updates=1, directory=tmp_path / "a", init_from=tmp_path / "b")
    with pytest.warns(UserWarning, match=r"init_groups = \['policy'\] has no effect, .* began with init_groups = \[\]"):
        fitted(updates=2, directory=tmp_path / "c", init_from=tmp_path / "a", init_groups=("policy",))
    with pytest.warns(UserWarning, match="the run is finished, so eval_every has no effect"):
        fitted(updates=1, directory=tmp_path / "a", eval_every=1)


@pytest.mark.slow
def test_networks_that_compute_something_else_warn(tmp_path):
    fitted(updates=1, directory=tmp_path / "a", cfg=CFG.replace(activation="relu"))
    with pytest.warns(UserWarning, match="activation was 'relu', so that the copied networks may compute something else here"):
        fitted(updates=1, init_from=tmp_path / "a", cfg=CFG.replace(activation="swish"))
    force, options = boxed(Varied)(), {"updates": 1, "cfg": CFG.replace(std="state")}
    fitted(**options, directory=tmp_path / "b", env=force)
    options["cfg"] = CFG.replace(action_distribution="beta")
    with pytest.warns(UserWarning, match="action_distribution was 'auto', std was 'state', so that the copied networks"):
        fitted(**options, init_from=tmp_path / "b", env=force)
    options["cfg"] = CFG.replace(std="state", log_std_init=-1.0)  # of `parameter`, the copied value counts
    with pytest.warns(UserWarning, match="log_std_init was 0.0, so that the copied networks"):
        fitted(**options, init_from=tmp_path / "b", env=force)
    fitted(updates=1, init_from=tmp_path / "a", cfg=CFG.replace(activation="relu"))


@pytest.mark.parametrize("field", ["critic_obs", "action_mask"])
@pytest.mark.parametrize(("then", "now", "warns"), [("a", "b", True), ("a", "a", False), ("", "auto", False)])
def test_networks_that_read_other_entries_warn(field, then, now, warns, recwarn):
    record = lambda value: {"objects": {}, "numbers": {}, "config": json.loads(CFG.replace(**{field: value}).to_json())}
    saved = Checkpoint(0, record(then), {})
    warn_of_other_networks(saved, record(now), "runs/a")
    assert [f"{field} was 'a'" in str(x.message) for x in recwarn] == [True] * warns


def test_diverged_runs_are_no_start(tmp_path):
    train = tiny()
    state = train.init(KEY)
    purerl.save(tmp_path, train, state.replace(params=state.params | {"value": nans(state.params["value"])}))
    with pytest.raises(purerl.ConfigError, match=r"init_from.*: 1 of 1 runs have diverged.*; start from another run"):
        started(state, tmp_path)
    with pytest.warns(UserWarning, match="value/head, value/torso begin with new parameters"):
        started(state, tmp_path, ("policy",))


def nans(tree):
    return jax.tree.map(lambda x: x * jax.numpy.nan, tree)


@pytest.mark.slow
def test_start_from_runs_of_which_some_have_diverged_warns(tmp_path):
    diverging = jax.vmap(lambda lr: CFG.replace(lr=lr, lr_schedule="constant", optimizer="sgd", max_grad_norm=jax.numpy.inf))
    cfg = diverging(jax.numpy.array([1e-3, 1e30]))
    with warnings.catch_warnings(action="ignore"):
        fitted(updates=2, directory=tmp_path, cfg=cfg, on_nonfinite="ignore")
    with pytest.warns(UserWarning, match="1 of 2 runs have diverged"):
        fitted(updates=1, init_from=tmp_path, cfg=cfg, on_nonfinite="ignore")


@pytest.mark.slow
def test_copied_networks_that_compute_something_else_warn(tmp_path):
    class Scaled(nn.Module):
        factor: Any

        @nn.compact
        def __call__(self, x):
            return nn.tanh(self.factor(nn.Dense(4)(x)))

    def times(x, scale):
        return scale * x

    scaled = lambda scale: Scaled(functools.partial(times, scale=scale))
    plain = CFG.replace(hidden=purerl.PPOConfig().hidden)
    fitted(updates=1, directory=tmp_path / "a", cfg=plain, torso=scaled(1.0))
    with pytest.warns(UserWarning, match="torso.factor.scale was 1, so that the copied networks may compute something else"):
        fitted(updates=1, init_from=tmp_path / "a", cfg=plain, torso=scaled(5.0))
    cfg = CFG.replace(normalize_obs=True)
    fitted(updates=1, directory=tmp_path / "b", cfg=cfg)
    with pytest.warns(UserWarning, match="obs_clip was 10"):
        fitted(updates=1, init_from=tmp_path / "b", cfg=cfg.replace(obs_clip=5.0))
