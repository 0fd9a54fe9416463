"""What researchers add from outside (`tests/ideas`), in every algorithm, under every transformation, killed and loaded."""

import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.algorithms.registry import MAKERS
from purerl.config.algorithms import ALGORITHMS, algorithm_of
from tests import ideas
from tests.ideas import own_memory, own_network, regularizers, residual_equinox, residual_linen, residual_nnx, simulator
from tests.ideas.dm_env_like import walk
from tests.probes import Varied
from tests.test_resume import StopAt
from tests.tiny import digest

KEY = jax.random.key(0)
SIZES = {"total_timesteps": 256, "num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden": (8,), "lr": 1e-3}
KINDS = {
    "ppo": purerl.PPOConfig(**SIZES, num_epochs=1),
    "ppg": purerl.PPGConfig(**SIZES, n_pi=2, e_aux=1),
    "daac": purerl.DAACConfig(**SIZES, e_v=1),
    "appo": purerl.APPOConfig(**SIZES, num_epochs=1, target_update_freq=2),
    "rnd": purerl.PPOConfig(**SIZES, num_epochs=1, rnd=purerl.RNDConfig(features=8, hidden=(8,), init_steps=64)),
}


def as_own_class(cfg):
    """A config with one more field, and the class that has it."""
    fields = {"strength": purerl.leaf(0.5), "__annotations__": {"strength": float}}
    cls = purerl.configclass(type(f"Own{type(cfg).__name__}", (type(cfg),), fields))
    return cls(**vars(cfg))


def kl_penalised(log_prob, old_log_prob, advantage, cfg, policy, old_policy):
    return -jnp.exp(log_prob - old_log_prob) * advantage + cfg.strength * old_policy.kl(policy)


def weighted(cfg, env, network, parts):
    """The config's own algorithm, with another loss."""
    return MAKERS[algorithm_of(cfg)](cfg, env, network, parts._replace(policy_loss=kl_penalised))


def distances(state, batch, metrics):
    return {"largest_advantage": jnp.abs(batch.steps.advantage).max(), "half_loss": metrics["loss"] / 2}


def halved(steps, cfg, log_ratio=None):
    found = purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)
    weight = 1.0 if log_ratio is None else jnp.exp(jnp.minimum(log_ratio, 0.0))
    return found.replace(advantage=0.5 * weight * found.advantage)


ENTRIES = {"info": ("distance",), "episode_info": ("reached", "distance")}
# Doors that do not depend on each other stand open together.
DOORS = {
    "simulator, losses and measure": lambda cfg: (
        cfg.replace(**ENTRIES),
        {"env": simulator.simulator, "extra_loss": regularizers.l2, "advantage": halved, "measure": distances},
    ),
    "bare environment, torso of equinox": lambda cfg: (
        cfg.replace(episode_info=("right",)),
        {"env": walk, "torso": residual_equinox.residual},
    ),
    "algorithm, config, torso of linen": lambda cfg: (
        as_own_class(cfg),
        {"env": Varied(), "algorithm": weighted, "torso": residual_linen.Residual(8)},
    ),
    "memory, torso of nnx": lambda cfg: (
        cfg,
        {"env": Varied(), "memory": own_memory.MovingAverage(8), "torso": residual_nnx.residual},
    ),
    "network": lambda cfg: (cfg, {"env": Varied(), "network": purerl.from_linen(own_network.Recurrent(2, cfg.streams))}),
}
SEEN = {
    "simulator, losses and measure": (
        *("info/distance", "episode_info/reached/1", "episode_info/distance"),
        *("extra_loss", "extra_loss/norm", "largest_advantage", "half_loss"),
    ),
    "bare environment, torso of equinox": ("episode_info/right",),
}


def jit(cfg, objects, door, directory):
    train = purerl.make_train(cfg, **objects)
    result = jax.jit(train)(KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.state.params))
    before = train.init(KEY).params
    assert all(digest(before[group]) != digest(result.state.params[group]) for group in ("policy", "value"))
    metrics = purerl.summarize(result.metrics)
    assert all(np.isfinite(metrics[name]).any() for name in SEEN.get(door, ()))


def seeds(cfg, objects, door, directory):
    train = purerl.make_train(cfg, **objects)
    run = jax.jit(jax.vmap(lambda key: train(key).state.params))
    keys = jax.random.split(KEY, 3)
    independent(run(keys[:2]), run(keys[::2]))


def configs(cfg, objects, door, directory):
    run = lambda cfg: purerl.make_train(cfg, **objects)(KEY).state.params
    sweep = jax.vmap(lambda lr: cfg.replace(lr=lr))
    run = jax.jit(jax.vmap(run))
    independent(*(run(sweep(jnp.array([1e-3, other]))) for other in (1e-2, 3e-3)))


def independent(these, those):
    """Rows beside the first are different, and it does not depend on them."""
    row = lambda tree, i: digest(jax.tree.map(lambda x: x[i], tree))
    assert row(these, 0) == row(those, 0)
    assert len({row(these, 0), row(these, 1), row(those, 1)}) == 3


def resumed(cfg, objects, door, directory):
    whole = purerl.fit(cfg, chunk_seconds=1e-9, **objects)
    part = purerl.fit(cfg, directory=directory, chunk_seconds=1e-9, recorders=(StopAt(1),), **objects)
    assert part.stopped_by == signal.SIGTERM
    rest = purerl.fit(cfg, directory=directory, **objects)
    assert digest(rest.state) == digest(whole.state)
    assert digest(rest.metrics) == digest(whole.metrics)


def loaded(cfg, objects, door, directory):
    result = purerl.fit(cfg, directory=directory, **objects)
    own = {} if type(cfg) in ALGORITHMS.values() else {"config_class": type(cfg)}
    run = purerl.load(directory, **own, **objects)
    assert digest(run.state) == digest(result.state)
    assert run.cfg == cfg.resolved(run.train.env) or "config" in door
    assert run.evaluate(num_episodes=2, max_steps=8).returns.shape == (2,)
    purerl.export(run.train, run.state, directory / "policy")
    with pytest.raises(purerl.CheckpointMismatch) as refused:
        purerl.load(directory)
    assert all(name in str(refused.value) for name in objects if name != "measure")


CHECKS = (jit, seeds, configs, resumed, loaded)
PAIRS = [
    pytest.param(
        door, check, list(KINDS)[(i + j) % len(KINDS)], id=f"{door}, {check.__name__}, {list(KINDS)[(i + j) % len(KINDS)]}"
    )
    for i, door in enumerate(DOORS)
    for j, check in enumerate(CHECKS)
]


@pytest.mark.parametrize(("door", "check", "kind"), PAIRS)
def test_each_pair_of_door_check_and_algorithm(door, check, kind, tmp_path):
    check(*DOORS[door](KINDS[kind]), door, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_under_every_check(door, kind, tmp_path):
    for check in CHECKS:
        check(*DOORS[door](KINDS[kind]), door, tmp_path / check.__name__)


IDEAS = sorted(pathlib.Path(ideas.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("path", IDEAS, ids=[path.stem for path in IDEAS])
def test_an_idea_takes_less_than_thirty_lines(path):
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) < 30
    assert max(map(len, lines)) <= 100
