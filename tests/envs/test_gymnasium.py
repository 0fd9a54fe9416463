"""External environments: gymnasium's."""

import functools
import os
import re
import signal
import subprocess
import sys
import time

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import purerl
from purerl.runs.storage.checkpoint import saved_updates
from tests.helpers.gymnasium_env import LENGTH, Ends
from tests.helpers.tiny import digest

CFG = purerl.PPOConfig(total_timesteps=64 * 4, num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden=(8,))
CARTPOLE = CFG.replace(env="gymnasium/CartPole-v1")


def of_vector(kind, mode):
    return lambda count: kind([Ends] * count, autoreset_mode=mode)


MADE = {
    "sync": lambda: purerl.from_gymnasium(Ends),
    "next step": lambda: purerl.from_gymnasium(of_vector(SyncVectorEnv, AutoresetMode.NEXT_STEP), "vector"),
    "same step": lambda: purerl.from_gymnasium(of_vector(SyncVectorEnv, AutoresetMode.SAME_STEP), "vector"),
    "disabled": lambda: purerl.from_gymnasium(of_vector(SyncVectorEnv, AutoresetMode.DISABLED), "vector"),
    "async": lambda: purerl.from_gymnasium(Ends, "async"),
    "async, next step": lambda: purerl.from_gymnasium(of_vector(AsyncVectorEnv, AutoresetMode.NEXT_STEP), "vector"),
    "async, same step": lambda: purerl.from_gymnasium(of_vector(AsyncVectorEnv, AutoresetMode.SAME_STEP), "vector"),
}
FORKS = pytest.mark.filterwarnings("ignore:os.fork")  # gymnasium's own default


@pytest.mark.parametrize(
    "made", [pytest.param(name, marks=[pytest.mark.slow, FORKS] if "async" in name else []) for name in MADE]
)
def test_flags_and_final_observations_are_exact(made):
    """Nine steps make three episodes of three steps each."""
    env = MADE[made]()
    env = env.host.environment(("twice", "ended"))

    def run():
        handle, obs = env.reset(jax.random.split(jax.random.key(0), 2))
        step = lambda handle, keys: (lambda after: (after.env_state, after))(env.step(keys, handle, jnp.zeros(2, jnp.int32)))
        return obs, jax.lax.scan(step, handle, jax.random.split(jax.random.key(1), (9, 2, 2)))[1]

    first, after = jax.device_get(jax.jit(run)())
    assert after.obs.dtype == np.float32
    episode, step = np.arange(9) // LENGTH, np.arange(9) % LENGTH + 1
    both = lambda x: np.broadcast_to(x[:, None], (9, 2))
    base = first[0, 0]  # earlier episodes of the environment that was inspected
    assert (first == [base, 0]).all()
    np.testing.assert_array_equal(after.next_obs, np.stack([both(base + episode), both(step)], -1))
    done = step == LENGTH
    following = np.stack([both(base + episode + done), both(np.where(done, 0, step))], -1)
    np.testing.assert_array_equal(after.obs, following)
    kind = (episode + int(base)) % 3
    np.testing.assert_array_equal(after.terminated, both(done & (kind != 1)))
    np.testing.assert_array_equal(after.truncated, both(done & (kind != 0)))
    np.testing.assert_array_equal(after.reward, both(base + episode))
    np.testing.assert_array_equal(after.info["twice"], both(2 * step))
    np.testing.assert_array_equal(after.info["ended"], both(np.where(done, base + episode, 0)))


@pytest.mark.slow
def test_run_resumes_bit_for_bit(tmp_path):
    whole = purerl.fit(CARTPOLE.replace(lr_schedule="constant"), num_seeds=2)
    part = CARTPOLE.replace(lr_schedule="constant", total_timesteps=128)
    purerl.fit(part, num_seeds=2, directory=tmp_path)
    rest = purerl.fit(part.replace(total_timesteps=256), num_seeds=2, directory=tmp_path, eval_every=1, eval_episodes=2)
    assert rest.progress.began[0] == 2
    assert digest((rest.state.params, rest.state.actor.obs)) == digest((whole.state.params, whole.state.actor.obs))
    alone = purerl.fit(CARTPOLE.replace(lr_schedule="constant"), seed=1)
    assert digest(alone.state.params) == digest(whole.run.select(seed=1).state.params)


@pytest.mark.long
@pytest.mark.slow
def test_unsavable_environments_restart_with_a_warning(tmp_path):
    env = purerl.from_gymnasium(functools.partial(Ends, keeps=(1,)))
    purerl.fit(CFG.replace(total_timesteps=128, lr_schedule="constant"), env=env, directory=tmp_path)
    with pytest.warns(UserWarning, match=r"environments restart, since these attributes cannot be saved: Ends.keeps \(set\)"):
        result = purerl.fit(CFG.replace(lr_schedule="constant"), env=env, directory=tmp_path)
    assert result.progress.updates == 4


@pytest.mark.slow
def test_environment_error_names_its_step_and_saves_the_run(tmp_path):
    class Late(Ends):
        broken = True

        def step(self, action):
            if self.episode == 10 and self.broken:
                raise ValueError("boom")
            return super().step(action)

    with pytest.raises(purerl.EnvironmentFailed, match=r"environment 0, step 1 of its episode, action [01]: ValueError: boom"):
        purerl.fit(CFG, env=purerl.from_gymnasium(Late), directory=tmp_path, chunk_seconds=1e-9)
    assert saved_updates(tmp_path / "checkpoints") == [1]  # episode 10 is in the second update
    Late.broken = False
    with pytest.warns(UserWarning, match="environments restart, since they failed"):
        purerl.fit(CFG, env=purerl.from_gymnasium(Late), directory=tmp_path)


@pytest.mark.slow
def test_dead_worker_ends_the_run_with_a_checkpoint(tmp_path):
    env = purerl.from_gymnasium(functools.partial(Ends, die_at=2), "async")
    with pytest.raises(purerl.EnvironmentFailed, match=r"environment \d \(its process has ended\), step \d+, actions \["):
        purerl.fit(CFG.replace(num_steps=4, num_minibatches=1), env=env, directory=tmp_path, chunk_seconds=1e-9)
    assert saved_updates(tmp_path / "checkpoints") == [1]


def test_invalid_gymnasium_options_are_refused(tmp_path):
    wrong = [
        ({"env": "gymnasium/CartPol-v1"}, {}, "Did you mean: `CartPole`"),
        ({"env": "gymnasium/nowhere:CartPole-v1"}, {}, "the module nowhere is not imported"),
        ({"env": "gymnasium/CartPole-v1", "num_levels": 3}, {}, "do not reset from keys"),
        ({"env": "gymnasium/CartPole-v1"}, {"env_params": {"g": 9.8}}, "must be None"),
        ({"env": "gymnasium/CartPole-v1", "env_kwargs": (("vectorization", "fast"),)}, {}, "must be one of sync, async"),
        (
            {"env": "gymnasium/CartPole-v1", "env_kwargs": (("wind", 1),)},
            {},
            "gymnasium/CartPole-v1 does not accept these arguments",
        ),
        ({"env": "gymnasium/CartPole-v1", "env_params": {"g": 1.0}}, {}, "the environment has no parameters"),
        ({"env": "gymnasium/CartPole-v1", "info": ("speed",)}, {}, "the environment's info has no such entry"),
        ({}, {"env": Ends()}, "purerl.from_gymnasium"),
        ({"env": "gymnasium/CartPole-v1"}, {"axis_name": "x", "axis_size": 2}, "cannot be spread over 2 devices"),
    ]
    for changes, objects, text in wrong:
        with pytest.raises(purerl.ConfigError, match=text):
            purerl.make_train(CFG.replace(**changes), **objects)

    class Wrong(Ends):
        def _obs(self):
            return np.zeros(3)

    made = [
        (Wrong, "sync", "the space declares"),
        (Ends(), "sync", "must be a function"),
        (dict, "sync", "Expected env to be a `gymnasium.Env`"),
        (Ends, "vector", "must return a gymnasium.vector"),
        (
            lambda count: gymnasium.make_vec("CartPole-v1", count, "vector_entry_point"),
            "vector",
            "resets one step late",
        ),
    ]
    for make, vectorization, text in made:
        with pytest.raises(purerl.ConfigError, match=text):
            purerl.from_gymnasium(make, vectorization)
    with pytest.raises(purerl.ConfigError, match="a study cannot restore the states"):
        purerl.tune(CARTPOLE, {"lr": purerl.Range(1e-4, 1e-3)}, trials=2, rungs=1)


@pytest.mark.slow
def test_check_env_and_plan_support_external_environments():
    report = purerl.check_env("gymnasium/CartPole-v1", num_envs=2, num_steps=60)
    assert report.problems == ()
    assert "time limit: 500 steps" in report.notes[0]

    class Unseeded(Ends):
        def _obs(self):
            return np.random.rand(2)

    assert (
        "two runs from the same key differ"
        in purerl.check_env(purerl.from_gymnasium(Unseeded), num_envs=2, num_steps=8).problems[0]
    )
    assert "external (Python) environments" in str(purerl.make_train(CARTPOLE).plan)
    assert purerl.from_gymnasium(lambda: gymnasium.wrappers.TimeLimit(Ends(), 7)).max_steps == 7


@pytest.mark.long
def test_sweeps_and_appo_train_on_external_environments():
    result = purerl.sweep(CARTPOLE, {"lr": [1e-4, 1e-3]}).fit()
    assert np.isfinite(result.returns).all()
    sizes = {name: getattr(CARTPOLE, name) for name in ("env", "total_timesteps", "num_envs", "num_steps", "hidden")}
    purerl.fit(purerl.APPOConfig(**sizes, num_minibatches=2))


@pytest.mark.long
@pytest.mark.parametrize("cfg", [purerl.PPGConfig(n_pi=2, e_aux=1), purerl.DAACConfig()], ids=["ppg", "daac"])
def test_multi_phase_and_recurrent_runs_train_on_external_environments(cfg):
    sizes = {name: getattr(CARTPOLE, name) for name in ("env", "total_timesteps", "num_envs", "num_steps", "hidden")}
    purerl.fit(cfg.replace(**sizes, num_minibatches=2))
    purerl.fit(CARTPOLE.replace(memory="gru", memory_size=8, memory_inputs=("action", "reward"), rnd=purerl.RNDConfig()))


@pytest.mark.long
def test_killed_run_resumes_bit_for_bit(tmp_path):
    flags = (
        "--env",
        "gymnasium/CartPole-v1",
        "--total-timesteps",
        "20000",
        "--num-envs",
        "4",
        "--num-steps",
        "16",
        "--save-every",
        "5",
    )
    command = lambda folder: [sys.executable, "-m", "purerl", "ppo", *flags, "--directory", str(tmp_path / folder)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    assert subprocess.run(command("whole"), **quiet, timeout=300).returncode == 0
    checkpoints, seen = tmp_path / "killed" / "checkpoints", 0
    for how in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(command("killed"), **quiet) as process:
            while process.poll() is None and (saved_updates(checkpoints) or [0])[-1] <= seen:
                time.sleep(0.05)
            process.send_signal(how)
            process.wait(60)
        seen = saved_updates(checkpoints)[-1]
    assert subprocess.run(command("killed"), **quiet, timeout=300).returncode == 0
    whole, killed = purerl.load(tmp_path / "whole"), purerl.load(tmp_path / "killed")
    assert digest((whole.state.params, whole.state.actor.obs)) == digest((killed.state.params, killed.state.actor.obs))


class Told(Ends):
    """An environment whose info has a vector only at the end of an episode."""

    def step(self, action):
        *after, info = super().step(action)
        return *after, info | ({"where": np.array([1.0, 2.0, 3.0])} if after[2] or after[3] else {})


class Method(Ends):
    def valid_actions(self):
        return np.ones(2, bool)


class InInfo(Ends):
    def step(self, action):
        *after, info = super().step(action)
        return *after, info | {"legal_actions": np.ones(2, bool)}


@pytest.mark.parametrize(("make", "name"), [(Method, "Method.valid_actions"), (InInfo, "info['legal_actions']")])
def test_masks_outside_of_observations_warn(make, name):
    with pytest.warns(UserWarning, match=f"action_mask = 'auto': {re.escape(name)} is not read"):
        purerl.make_train(CFG, env=purerl.from_gymnasium(make))
    purerl.make_train(CFG.replace(action_mask=""), env=purerl.from_gymnasium(make))


@pytest.mark.long
@pytest.mark.slow
def test_vector_info_may_be_missing_from_some_steps():
    env = purerl.from_gymnasium(Told)
    train = purerl.make_train(CFG.replace(episode_info=("where",)), env=env)
    metrics = purerl.summarize(jax.jit(train)(jax.random.key(0)).metrics)
    means = [x for name, x in metrics.items() if name.startswith("episode_info/where")]
    np.testing.assert_array_equal(means, np.array([[1.0], [2.0], [3.0]]) * np.ones(4))


def test_missing_package_that_registers_an_id_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if ale_py were not installed
    with pytest.raises(purerl.ConfigError, match="pip install ale-py"):
        purerl.make_train(purerl.PPOConfig(env="gymnasium/ALE/Pong-v5"))


STAND_IN = """
import gymnasium
from tests.helpers.gymnasium_env import Ends
gymnasium.register("ALE/StandIn-v5", Ends)
"""


@pytest.mark.each_landing("sync")
@pytest.mark.slow
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_package_that_registers_an_id_is_imported_in_each_process(vectorization, fresh_python, tmp_path):
    (tmp_path / "ale_py.py").write_text(STAND_IN)
    code = f"""
import purerl
cfg = purerl.PPOConfig(env="gymnasium/ALE/StandIn-v5", total_timesteps=128, num_envs=2, num_steps=16, num_minibatches=2)
print(purerl.fit(cfg.replace(env_kwargs=(("vectorization", "{vectorization}"),))).progress.updates)
"""
    assert fresh_python(code, PYTHONPATH=f"{tmp_path}:{os.getcwd()}") == "4\n"


def test_info_may_contain_a_dict():
    counted = lambda count: gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.vector.SyncVectorEnv([Told] * count))
    env = purerl.from_gymnasium(counted, "vector")
    assert "where" in env.host.info_shapes()


def test_factory_must_return_a_new_environment_each_time():
    env = Ends()
    with pytest.raises(purerl.ConfigError, match="must return a new environment in each call"):
        purerl.from_gymnasium(lambda: env)


@pytest.mark.slow
def test_numbers_beyond_32_bits_keep_their_values():
    class Wide(Ends):
        observation_space = spaces.Box(0, 2**62, (1,), np.int64)
        action_space = spaces.Box(-0.1, 0.1, (3,), np.float64)

        def _obs(self):
            return np.array([3_000_000_000])

        def step(self, action):
            assert self.action_space.contains(action)
            info = {"share": 0 if self.time % 2 else 0.5}
            return *super().step(action)[:4], info

    env = purerl.from_gymnasium(Wide)
    assert jax.jit(env.reset)(jax.random.split(jax.random.key(0), 1))[1].tolist() == [[3e9]]
    cfg = CFG.replace(info=("share",), action_distribution="tanh", log_std_init=2.0)
    metrics = purerl.summarize(jax.jit(purerl.make_train(cfg, env=env))(jax.random.key(0)).metrics)
    assert 0.1 < metrics["info/share"].mean() < 0.4


@pytest.mark.slow
def test_environment_errors_are_named_outside_training():
    env = purerl.from_gymnasium(functools.partial(Ends, error_at=2))
    assert "ValueError: boom" in purerl.check_env(env).problems[0]
    run = purerl.fit(CFG.replace(num_steps=1, num_minibatches=1, total_timesteps=4), env=env).run
    with pytest.raises(purerl.EnvironmentFailed, match=r"step 2 of its episode.*boom"):
        run.evaluate(2, max_steps=4)


NORMALIZED = gymnasium.wrappers.NormalizeObservation
SCALED = gymnasium.wrappers.NormalizeReward


class RunningMean:
    """Running statistics as several libraries have them."""

    mean, var, count = 0.0, 1.0, 1e-4

    def update(self, x):
        pass


class OwnStatistics(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.obs_statistics = RunningMean()

    def observation(self, observation):
        return observation


def around(wrapper, vectorization="sync", inside=False, mode=AutoresetMode.SAME_STEP):
    """Return `make` of environments with this wrapper: around each, or around the vector environment."""
    if vectorization == "sync":
        return lambda: gymnasium.wrappers.TimeLimit(wrapper(Ends()), 9)
    if inside:
        return lambda count: SyncVectorEnv([around(wrapper)] * count, autoreset_mode=mode)
    return lambda count: wrapper(SyncVectorEnv([Ends] * count, autoreset_mode=mode))


@pytest.mark.parametrize(
    ("make", "vectorization", "field"),
    [
        (around(NORMALIZED), "sync", "normalize_obs"),
        (around(SCALED), "async", "normalize_reward"),
        (around(OwnStatistics), "sync", "normalize_obs"),
        (around(SCALED, "vector", inside=True), "vector", "normalize_reward"),
        (around(gymnasium.wrappers.vector.NormalizeReward, "vector"), "vector", "normalize_reward"),
        (
            around(gymnasium.wrappers.vector.NormalizeObservation, "vector", mode=AutoresetMode.NEXT_STEP),
            "vector",
            "normalize_obs",
        ),
        pytest.param(
            lambda count: AsyncVectorEnv([lambda: SCALED(Ends())] * count, autoreset_mode=AutoresetMode.SAME_STEP),
            "vector",
            "normalize_reward",
            marks=[pytest.mark.slow, FORKS],
        ),
    ],
)
def test_wrappers_with_running_statistics_are_refused_at_any_depth(make, vectorization, field):
    with pytest.raises(purerl.ConfigError, match=f"running statistics .* set {field}=True in the config"):
        purerl.from_gymnasium(make, vectorization)


@pytest.mark.parametrize("vectorization", ["sync", "vector"])
def test_wrappers_that_change_rewards_warn(vectorization):
    clip = gymnasium.wrappers.vector.ClipReward if vectorization == "vector" else gymnasium.wrappers.ClipReward
    env = purerl.from_gymnasium(around(lambda env: clip(env, 0, 1), vectorization), vectorization)
    with pytest.warns(UserWarning, match="make = ClipReward: changes rewards, also in reported returns"):
        purerl.make_train(CFG, env=env)


@pytest.mark.slow
def test_runs_of_several_seeds_can_be_loaded(tmp_path):
    env = purerl.from_gymnasium(Ends)
    found = purerl.fit(CFG, env=env, num_seeds=2, directory=tmp_path, progress=False)
    run = purerl.load(tmp_path, env=env)
    assert digest(run.state.params) == digest(found.state.params)


class Shifted(Ends):
    observation_space = spaces.Dict({"gear": spaces.Discrete(3, start=5)})
    action_space = spaces.Discrete(2, start=-1)

    def _obs(self):
        return {"gear": 6}


def test_spaces_that_begin_at_other_numbers_and_hidden_bounds_warn():
    found = [str(problem) for problem in purerl.from_gymnasium(Shifted).host.warnings]
    assert len(found) == 2  # actions and observations
    assert all(
        "begin at another number than 0, but a policy that is called outside of training counts from 0" in x for x in found
    )

    class Force(Ends):
        action_space = spaces.Box(0, 1000, (1,))

    with pytest.warns(UserWarning, match="make = ClipAction: hides the bounds of actions"):
        purerl.make_train(CFG, env=purerl.from_gymnasium(lambda: gymnasium.wrappers.ClipAction(Force())))
