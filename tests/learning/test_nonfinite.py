"""Non-finite values in runs: updates are skipped or reported, and other runs are unchanged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from tests.helpers.probes import Poisoned, Varied
from tests.helpers.programs import equations
from tests.helpers.tiny import CFG, at, digest

# Episodes of 40 steps: the poison of step 5 is in updates 1, 3, 6, 8, ... of 16 steps each.
FROZEN = CFG.replace(total_timesteps=64 * 10, nonfinite="freeze")


def poisoned(cfg, poison, **kwargs):
    return purerl.fit(cfg.replace(env_params={"poison": poison}), env=Poisoned(), **kwargs)


def test_nonfinite_update_is_skipped_and_counted():
    with pytest.warns(UserWarning, match="has skipped 4 of 10 updates"):
        result = poisoned(FROZEN, 1.0, chunk_seconds=1e-9)
    metrics = purerl.summarize(result.metrics)
    skipped = metrics["nonfinite"].astype(bool)
    assert skipped.tolist() == [True, False, True, False, False, True, False, True, False, False]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get((result.state.params, result.state.opt_state))))
    assert np.isnan(metrics["policy_loss"][skipped]).all()  # not counted
    assert np.isfinite(metrics["policy_loss"][~skipped]).all()


def test_skipped_update_keeps_the_learnt_state():
    train = purerl.make_train(FROZEN.replace(env_params={"poison": 1.0}), env=Poisoned())
    state = train.init(jax.random.key(0))
    after, metrics = jax.jit(train.update)(state)
    assert int(metrics["nonfinite"].total) == 1
    assert digest((after.params, after.opt_state)) == digest((state.params, state.opt_state))
    assert digest(after.actor) != digest(state.actor)


@pytest.mark.long
def test_auxiliary_state_excludes_nonfinite_rollouts():
    """Updates 0 and 2 are skipped. PPG stores the rollout before a skipped one twice; APPO's ring leaves its place free."""
    sizes = {name: getattr(FROZEN, name) for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "hidden")}
    more = {"nonfinite": "freeze", "env_params": {"poison": 1.0}, "lr": 1e-3}
    for cfg in (purerl.PPGConfig(**sizes, **more, n_pi=3, aux_columns=4), purerl.APPOConfig(**sizes, **more, replay=3, lag=0)):
        train = purerl.make_train(cfg, env=Poisoned())
        state, update = jax.jit(train.init)(jax.random.key(0)), jax.jit(train.update)
        for skipped in (True, False, True, False):
            before, (state, metrics) = state, update(state)
            assert bool(metrics["nonfinite"].total) == skipped
        kept = jax.tree.leaves(jax.device_get((state.params, state.extra)))
        assert all(np.isfinite(x).all() for x in kept if x.dtype.kind == "f")
        if isinstance(cfg, purerl.PPGConfig):
            columns = before.extra["buffer"].steps.obs.reshape(16, 3, 4, -1)  # updates 0, 1, 2
            np.testing.assert_array_equal(columns[:, 2], columns[:, 1])
            assert (columns[:, 1] != columns[:, 0]).any()
        else:
            assert (before.extra["ring"].uses > 100).tolist() == [True, False, True]
            assert before.extra["ring"].age.tolist() == [2, 1, 0]


@pytest.mark.slow
def test_nonfinite_run_leaves_other_runs_of_the_batch_unchanged():
    cfg = FROZEN.replace(normalize_obs=True, normalize_reward=True)
    doses = lambda *values: jax.vmap(lambda x: cfg.replace(env_params={"poison": x}))(jnp.array(values, jnp.float32))
    harmless = (0.0, 0.25, 0.5, 0.75)  # values differ, since a value that all configs share would be a constant of the program
    with pytest.warns(UserWarning, match=r"env_params\.poison = 1, seed 0: .* has skipped 4 of 10 updates"):
        mixed = purerl.fit(doses(0.0, 1.0, 2.0, 3.0), env=Poisoned())
    clean = purerl.fit(doses(*harmless), env=Poisoned())
    assert mixed.progress.labels[:2] == ("env_params.poison = 0, seed 0", "env_params.poison = 1, seed 0")
    assert digest(at((mixed.state.params, mixed.state.actor), 0)) == digest(at((clean.state.params, clean.state.actor), 0))
    skipped = purerl.summarize(mixed.metrics)["nonfinite"].sum(-1).tolist()
    assert skipped == [0, 4, 4, 4]  # nan rewards, infinite rewards, nan observations
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get((mixed.state.params, mixed.state.statistics))))


def test_divergence_ends_the_run_and_names_the_leaf_and_update(tmp_path):
    with pytest.raises(
        purerl.NotFiniteError, match=r"seed 3: \['opt_state'\].*mu\['policy'\] has not been finite since update 1\."
    ):
        poisoned(CFG, 1.0, seed=3, directory=tmp_path / "a")
    with pytest.raises(purerl.CheckpointError, match="no checkpoint"):
        purerl.load(tmp_path / "a", env=Poisoned())


@pytest.mark.slow
def test_last_finite_checkpoint_is_kept(tmp_path):
    late = CFG.replace(total_timesteps=640, env_params={"poison": 1.0, "at": 39})  # in the third update
    with pytest.raises(purerl.NotFiniteError, match="since update 3"):
        purerl.fit(late, env=Poisoned(), directory=tmp_path, save_every=1, keep=1)
    loaded = purerl.load(tmp_path, env=Poisoned())
    assert loaded.updates == 2
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(loaded.state.params)))


def test_on_nonfinite_ignore_continues_the_run():
    result = poisoned(CFG, 1.0, on_nonfinite="ignore")
    assert result.progress.updates == 4


def test_failing_save_does_not_hide_a_divergence(tmp_path, monkeypatch):
    def fail(self):
        raise purerl.CheckpointError("disk on fire")

    monkeypatch.setattr("purerl.runs.storage.checkpoint.Store.wait", fail)
    with pytest.raises(purerl.NotFiniteError) as error:
        poisoned(CFG, 1.0, directory=tmp_path)
    assert "disk on fire" in error.value.__notes__[0]


def test_default_program_omits_the_nonfinite_checks():
    programs = [
        jax.make_jaxpr(purerl.make_train(CFG.replace(nonfinite=mode), env=Poisoned()).update) for mode in ("ignore", "freeze")
    ]
    state = purerl.make_train(CFG, env=Poisoned()).init(jax.random.key(0))
    ignore, freeze = (equations(program(state).jaxpr) for program in programs)
    assert ignore < freeze


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:lr = .*Adam moves")
def test_divergence_by_a_huge_learning_rate_suggests_a_lower_one():
    with pytest.raises(purerl.NotFiniteError, match="a lower lr"):
        purerl.fit(CFG.replace(lr=1e38), env=Varied())
