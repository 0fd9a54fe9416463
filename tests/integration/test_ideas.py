"""Research ideas in `tests/ideas`: each works with every algorithm, under every transformation, stopped and resumed."""

import ast
import importlib
import pathlib
import signal
import sys
import warnings
from typing import Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import purerl
from purerl.cli import main
from purerl.config.algorithms import ALGORITHMS, algorithm_of
from purerl.runs.storage.checkpoint import read_record
from purerl.train import MAKERS
from tests import ideas
from tests.helpers.interrupted import StopAt
from tests.helpers.probes import Varied
from tests.helpers.tiny import digest
from tests.ideas import own_memory, own_network, regularizers, residual_equinox, residual_linen, residual_nnx, simulator, spo
from tests.ideas.brax_like import hopper
from tests.ideas.dm_env_like import walk

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
    """Return a config of a new class with one more field."""
    fields = {"strength": purerl.leaf(0.5), "__annotations__": {"strength": float}}
    cls = purerl.configclass(type(f"Own{type(cfg).__name__}", (type(cfg),), fields))
    return cls(**vars(cfg))


def kl_penalised(outputs, old, advantage, cfg):
    ratio = jnp.exp(outputs.policy.log_prob(old.action) - old.log_prob)
    return -ratio * advantage + cfg.strength * old.policy.kl(outputs.policy)


def weighted(cfg, env, network, parts):
    """Return the config's own algorithm, with another loss."""
    return MAKERS[algorithm_of(cfg)](cfg, env, network, parts._replace(policy_loss=kl_penalised))


def distances(state, batch, metrics):
    return {"largest_advantage": jnp.abs(batch.steps.advantage).max(), "half_loss": metrics["loss"] / 2}


def halved(steps, cfg, log_ratio=None):
    found = purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)
    weight = 1.0 if log_ratio is None else jnp.exp(jnp.minimum(log_ratio, 0.0))
    return found.replace(advantage=0.5 * weight * found.advantage)


ENTRIES = {"info": ("distance",), "episode_info": ("reached", "distance")}
# Independent extension points are tested together. The check `resumed` loads the run, too.
EXTENSIONS = {
    "simulator, losses, measure, torso of nnx": lambda cfg: (
        cfg.replace(**ENTRIES),
        {
            "env": simulator.simulator,
            "extra_loss": regularizers.l2,
            "advantage": halved,
            "measure": distances,
            "torso": residual_nnx.residual,
        },
    ),
    "single environment, torso of equinox": lambda cfg: (
        cfg.replace(episode_info=("right",)),
        {"env": walk, "torso": residual_equinox.residual},
    ),
    "algorithm, config, network": lambda cfg: (
        as_own_class(cfg),
        {"env": Varied(), "algorithm": weighted, "network": purerl.from_linen(own_network.Recurrent(2, cfg.streams))},
    ),
    "memory, torso of linen": lambda cfg: (
        cfg,
        {"env": Varied(), "memory": own_memory.MovingAverage(8), "torso": residual_linen.Residual(8)},
    ),
}
SEEN = {
    "simulator, losses, measure, torso of nnx": (
        *("info/distance", "episode_info/reached/1", "episode_info/distance"),
        *("extra_loss", "extra_loss/norm", "largest_advantage", "half_loss"),
    ),
    "single environment, torso of equinox": ("episode_info/right",),
}


def jit(cfg, objects, extension, directory):
    train = purerl.make_train(cfg, **objects)
    result = jax.jit(train)(KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.state.params))
    before = train.init(KEY).params
    assert all(digest(before[group]) != digest(result.state.params[group]) for group in ("policy", "value"))
    metrics = purerl.summarize(result.metrics)
    assert all(np.isfinite(metrics[name]).any() for name in SEEN.get(extension, ()))


def vmapped(cfg, objects, extension, directory):
    """Check that rows of two configs and two seeds are independent of the rows beside them."""
    run = jax.jit(jax.vmap(lambda cfg, key: purerl.make_train(cfg, **objects)(key).state.params))
    configs = jax.vmap(lambda lr: cfg.replace(lr=lr))
    keys = jax.random.split(KEY, 2)
    independent(
        run(configs(jnp.array([1e-3, 1e-3, 1e-2])), keys[jnp.array([0, 1, 0])]),
        run(configs(jnp.array([1e-3, 3e-3, 5e-3])), keys[jnp.array([0, 0, 1])]),
    )


def independent(these, those):
    """Check that the first row is independent of the rows beside it, and that all others differ from it and each other."""
    row = lambda tree, i: digest(jax.tree.map(lambda x: x[i], tree))
    assert row(these, 0) == row(those, 0)
    assert len({row(rows, i) for rows in (these, those) for i in range(3)}) == 5


def resumed(cfg, objects, extension, directory):
    whole = purerl.fit(cfg, chunk_seconds=1e-9, **objects)
    part = purerl.fit(cfg, directory=directory, chunk_seconds=1e-9, recorders=(StopAt(1),), **objects)
    assert part.stopped_by == signal.SIGTERM
    loaded(part.state, cfg, objects, extension, directory)
    rest = purerl.fit(cfg, directory=directory, **objects)
    assert digest(rest.state) == digest(whole.state)
    assert digest(rest.metrics) == digest(whole.metrics)


def loaded(state, cfg, objects, extension, directory):
    own = {} if type(cfg) in ALGORITHMS.values() else {"config_class": type(cfg)}
    run = purerl.load(directory, **own, **objects)
    assert digest(run.state) == digest(state)
    assert run.cfg == cfg.resolve(run.train.env) or "config" in extension
    with pytest.raises(purerl.CheckpointMismatch) as refused:
        purerl.load(directory)
    assert all(name in str(refused.value) for name in objects if name != "measure")


CHECKS = (jit, vmapped, resumed)
IN_PRODUCT = ((resumed, "daac"), (resumed, "ppg"), (resumed, "rnd"))  # only in the whole product: resuming takes longest
# Every check with every algorithm, and every extension point with every check, except these. The whole product is slow.
PAIRS = [
    ([*EXTENSIONS][(i + j) % len(EXTENSIONS)], check, kind) for i, check in enumerate(CHECKS) for j, kind in enumerate(KINDS)
]
PAIRS = [pair for pair in PAIRS if pair[1:] not in IN_PRODUCT]
PAIRS = [pair if pair[1:] == (jit, "ppo") else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS]


@pytest.mark.each_landing("memory, torso of linen-jit-appo")
@pytest.mark.filterwarnings("ignore:.*no phase of this algorithm trains the groups")  # PPO does not use all heads
@pytest.mark.parametrize(("extension", "check", "kind"), PAIRS)
def test_extension_points_work_with_every_algorithm(extension, check, kind, tmp_path):
    check(*EXTENSIONS[extension](KINDS[kind]), extension, tmp_path)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*no phase of this algorithm trains the groups")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_extension_points_pass_every_check_with_every_algorithm(extension, kind, tmp_path):
    for check in CHECKS:
        if (extension, check, kind) not in PAIRS:  # the others are in `PAIRS`
            check(*EXTENSIONS[extension](KINDS[kind]), extension, tmp_path / check.__name__)


IDEAS = sorted(pathlib.Path(ideas.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("path", IDEAS, ids=[path.stem for path in IDEAS])
def test_each_idea_takes_fewer_than_thirty_lines(path):
    text = path.read_text()
    documented = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docs = "".join(ast.get_docstring(node, clean=False) or "" for node in documented)
    lines = [line for line in text.splitlines() if line.strip() and line.strip().strip('"') not in docs]
    assert len(lines) < 30
    assert max(map(len, lines)) <= 120


# --- metrics at the ends of episodes ----------------------------------------------------------------------------------


class Achieving:
    """An environment with episodes of four steps and three achievements: reached always, after an odd start, and never."""

    action_space = purerl.Discrete(2)

    def reset(self, key):
        odd, time = jax.random.bernoulli(key).astype(jnp.float32), jnp.float32(0)
        return (odd, time), jnp.stack([odd, time])

    def step(self, key, state, action):
        odd, time = state[0], state[1] + 1
        done = {"achieved": jnp.stack([jnp.float32(1), odd, jnp.float32(0)]), "success": odd > 0}
        return (odd, time), jnp.stack([odd, time]), odd, time == 4, False, done


def odd_share(state, batch, metrics):
    odd, time = batch.steps.obs[..., 0], batch.steps.obs[..., 1]
    return {"odd": (odd * (time == 3)).sum() / (time == 3).sum()}


@pytest.mark.slow
def test_vector_info_at_episode_ends_gives_exact_rates():
    cfg = purerl.PPOConfig(**SIZES, episode_info=("achieved", "success"))
    train = purerl.make_train(cfg, env=purerl.wrap_env(Achieving()), measure=odd_share)
    result = jax.jit(train)(KEY)
    found = purerl.summarize(result.metrics)
    assert 0 < found["odd"][0] < 1
    for name, expected in (("achieved/0", 1.0), ("achieved/1", found["odd"]), ("achieved/2", 0.0), ("success", found["odd"])):
        np.testing.assert_array_equal(found[f"episode_info/{name}"], np.broadcast_to(np.float32(expected), 2))
    episodes = train.evaluate(result.state, KEY, num_episodes=6, max_steps=9)
    assert episodes.episode_info["achieved"].shape == (6, 3)
    np.testing.assert_array_equal(episodes.episode_info["achieved"][:, 1], episodes.returns / 4)
    np.testing.assert_array_equal(episodes.episode_info["achieved"][:, 0], 1)


# --- encoders by entry ------------------------------------------------------------------------------------------------


class Mixed(Achieving):
    """An environment that observes an image, a vector and a category."""

    observation_space = {"goal": purerl.Discrete(5)}

    def show(self, obs):
        image = jnp.full((6, 6, 2), 200, jnp.uint8)
        return {"camera": image, "goal": jnp.int32(3), "joints": obs}

    def reset(self, key):
        state, obs = super().reset(key)
        return state, self.show(obs)

    def step(self, key, state, action):
        state, obs, *rest = super().step(key, state, action)
        return state, self.show(obs), *rest


MIXED = purerl.wrap_env(Mixed())


def sizes(train):
    params = train.init(KEY).params
    return {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in jax.tree_util.tree_leaves_with_path(params)}


@pytest.mark.slow
def test_image_and_vector_entries_have_separate_encoders():
    train = purerl.make_train(purerl.PPOConfig(**SIZES), env=MIXED)
    found = sizes(train)
    assert found["policy/torso/encoders_camera/Conv_0/kernel"] == (3, 3, 2, 16)
    assert found["policy/torso/encoders_joints/Dense_0/kernel"] == (2, 8)
    assert found["policy/torso/encoders_goal/Dense_0/kernel"] == (5, 8)
    assert found["policy/torso/MLP_0/Dense_0/kernel"] == (24, 8)
    assert np.isfinite(purerl.summarize(jax.jit(train)(KEY).metrics)["loss"]).all()
    flat = sizes(purerl.make_train(purerl.PPOConfig(**SIZES, torso="mlp"), env=MIXED))
    assert flat["policy/torso/Dense_0/kernel"] == (6 * 6 * 2 + 5 + 2, 8)


def test_encoder_of_one_entry_can_be_replaced():
    train = purerl.make_train(purerl.PPOConfig(**SIZES), env=MIXED, torso={"joints": residual_linen.Residual(4)})
    found = sizes(train)
    assert found["policy/torso/encoders_joints/LayerNorm_0/scale"] == (4,)
    assert found["policy/torso/MLP_0/Dense_0/kernel"] == (8 + 8 + 4, 8)
    with pytest.raises(purerl.ConfigError, match="did you mean 'joints'"):
        purerl.make_train(purerl.PPOConfig(**SIZES), env=MIXED, torso={"joint": residual_linen.Residual})
    flat = sizes(
        purerl.make_train(purerl.PPOConfig(**SIZES, torso="mlp"), env=MIXED, torso={"joints": residual_linen.Residual(4)})
    )
    assert flat["policy/torso/encoders_camera/Dense_0/kernel"] == (6 * 6 * 2, 8)
    with pytest.raises(purerl.ConfigError, match=r"torso = 'nature_cnn': needs images .* of at least 36 x 36, not \[6, 6, 2\]"):
        purerl.make_train(purerl.PPOConfig(**SIZES, torso="nature_cnn"), env=MIXED, torso={"joints": residual_linen.Residual})


def test_functional_torso_keeps_its_own_initial_parameters():
    ones = (lambda key, x: {"kernel": jax.random.normal(key, (x.shape[-1], 4))}, lambda params, x: x @ params["kernel"])
    params = purerl.make_train(purerl.PPOConfig(**SIZES), env=Varied(), torso=ones).init(KEY).params
    policy, value = (params[group]["torso"]["own"]["kernel"] for group in ("policy", "value"))
    assert not np.allclose(policy.T @ policy, 2 * np.eye(4), atol=1e-3)  # the config's init would make it orthogonal
    assert not np.array_equal(policy, value)


# --- a directory is data ----------------------------------------------------------------------------------------------

SENTINEL = """
import pathlib
pathlib.Path(__file__).with_suffix(".imported").touch()
import purerl
from tests.ideas.own_network import Recurrent
from tests.integration.test_ideas import Achieving, weighted

class Env(Achieving):
    pass

class Net(Recurrent):
    pass

@purerl.configclass
class Config(purerl.PPOConfig):
    strength: float = purerl.leaf(0.5)

def algorithm(*args):
    return weighted(*args)

env = purerl.wrap_env(Env())
network = purerl.from_linen(Net(2))
"""


@pytest.mark.long
@pytest.mark.slow
def test_modules_named_in_a_directory_are_never_imported(tmp_path, monkeypatch, capsys):
    (tmp_path / "sentinel.py").write_text(SENTINEL)
    monkeypatch.syspath_prepend(tmp_path)
    sentinel = importlib.import_module("sentinel")
    cfg = sentinel.Config(**SIZES, env="sentinel:Env")
    objects = {"env": sentinel.env, "network": sentinel.network, "algorithm": sentinel.algorithm}
    purerl.fit(cfg, directory=tmp_path / "run", **objects)
    assert "sentinel.Env" in str(read_record(tmp_path / "run" / "checkpoints" / "2"))
    del sys.modules["sentinel"]
    (tmp_path / "sentinel.imported").unlink()

    tries = [
        lambda: purerl.load(tmp_path / "run"),
        lambda: purerl.fit(cfg.replace(env="CartPole-v1"), directory=tmp_path / "run"),
        lambda: purerl.fit(purerl.PPOConfig(**SIZES), directory=tmp_path / "run"),
    ]
    for run in tries:
        with pytest.raises(purerl.CheckpointMismatch) as refused:
            run()
        assert all(f"`{name}=`" in str(refused.value) for name in ("env", "network", "algorithm"))
    for command in ("eval", "render", "export"):
        assert main([command, str(tmp_path / "run")]) == 1
        said = capsys.readouterr().err
        assert all(f"--{name} package.module:name" in said for name in ("env", "algorithm", "config-class"))
    assert main(["plot", str(tmp_path / "run"), "--out", str(tmp_path / "a.png")]) == 0
    assert not (tmp_path / "sentinel.imported").exists()
    assert "sentinel" not in sys.modules


@pytest.mark.long
def test_command_line_accepts_import_paths(tmp_path, capsys, monkeypatch):
    names = {"--env": "tests.ideas.brax_like:hopper", "--algorithm": "tests.ideas.spo:spo"}
    paths = [part for pair in names.items() for part in pair]
    small = ["--total-timesteps", "128", "--num-envs", "4", "--num-steps", "16", "--hidden", "8", "--directory", str(tmp_path)]
    assert main(["tests.ideas.spo:SPOConfig", *paths, *small, "--spo-eps", "0.3"]) == 0
    assert purerl.load(tmp_path, config_class=spo.SPOConfig, algorithm=spo.spo, env=hopper).cfg.spo_eps == np.float32(0.3)
    assert main(["eval", str(tmp_path), *paths, "--config-class", "tests.ideas.spo:SPOConfig", "--num-episodes", "2"]) == 0
    capsys.readouterr()
    for args, says in (
        (["ppo", "--env", "tests.nothing:x"], "No module named"),
        (["ppo", "--env", "tests.ideas.spo:hoper"], "has no 'hoper'"),
        (["tests.ideas.spo:spo"], "must be a config class made with"),
        (["eval", str(tmp_path), *paths, "--config-class", "tests.ideas.vmpo:VMPOConfig"], "config_class: is"),
    ):
        assert main(args) in (1, 2)
        assert says in capsys.readouterr().err


def test_untrained_parameter_groups_warn():
    class Shared(nn.Module):
        @nn.compact
        def __call__(self, obs):
            x = nn.Dense(8, name="torso")(obs)
            heads = {"advantage": (nn.Dense(1, name="advantage")(x)[..., 0], jnp.zeros((*x.shape[:2], 2)))}
            return nn.Dense(2, name="policy")(x), nn.Dense(1, name="value")(x), heads

    with pytest.warns(UserWarning, match="no phase of this algorithm trains the groups torso"):
        purerl.make_train(KINDS["daac"], env=Varied(), network=purerl.from_linen(Shared))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "network")
        purerl.make_train(KINDS["ppo"], env=Varied(), network=purerl.from_linen(Shared))


# --- parts of extension points ----------------------------------------------------------------------------------------


class NnxNetwork(nnx.Module):
    def __init__(self, rngs):
        self.torso = nnx.Linear(4, 8, rngs=rngs)
        self.policy, self.value = nnx.Linear(8, 2, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, obs):
        x = nnx.swish(self.torso(obs))
        return self.policy(x), self.value(x)


MODULES = {
    "linen": {"network": purerl.from_linen(own_network.Recurrent(2))},
    "nnx": {"network": purerl.from_nnx(NnxNetwork)},
    "equinox": {"torso": residual_equinox.residual},
}


@pytest.mark.slow
@pytest.mark.each_landing("nnx")
@pytest.mark.parametrize("name", ["nnx", "linen", "equinox"])
def test_module_parameters_survive_saving_warm_starts_and_export(name, tmp_path):
    objects = {"env": Varied(), **MODULES[name]}
    train = purerl.make_train(KINDS["ppo"], **objects)
    state, _ = jax.jit(train.update)(train.init(KEY))
    purerl.save(tmp_path / "saved", train, state)
    assert digest(purerl.restore(tmp_path / "saved", train)) == digest(state)
    run = purerl.load(tmp_path / "saved", **objects)
    assert digest(run.state) == digest(state)
    assert run.evaluate(num_episodes=2, max_steps=8).returns.shape == (2,)
    still = KINDS["ppo"].replace(lr=0.0, lr_schedule="constant", total_timesteps=128)
    warm = purerl.fit(still, init_from=tmp_path / "saved", **objects)
    assert digest(warm.state.params) == digest(state.params)
    act = jax.export.deserialize(bytearray(purerl.export(train, state, tmp_path / "policy"))).call
    policy, obs, first = train.policy(state), jnp.ones((3, 4)), jnp.ones(3, bool)
    ours, _ = policy(policy.initial_carry(3), obs, first, KEY, True)
    theirs, _ = act(policy.initial_carry(3), obs, first, jax.random.PRNGKey(0), True)
    np.testing.assert_array_equal(ours, theirs)


def test_seeds_of_an_nnx_network_have_different_parameters():
    train = purerl.make_train(KINDS["ppo"], env=Varied(), network=purerl.from_nnx(NnxNetwork))
    kernels = jax.vmap(train.init)(jax.random.split(KEY, 2)).params["policy"]["kernel"]
    assert not np.array_equal(*kernels)


def all_weights(params, outputs, batch, cfg):
    return sum(jnp.square(x).sum() for x in jax.tree.leaves(params)), {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", pytest.param("daac", marks=pytest.mark.long)])
def test_extra_loss_trains_the_groups_of_the_policy_phase(kind):
    run = lambda **objects: jax.jit(purerl.make_train(KINDS[kind], env=Varied(), **objects))(KEY).state.params
    plain, pulled = run(), run(extra_loss=all_weights)
    assert digest(plain["policy"]) != digest(pulled["policy"])
    assert (digest(plain["value"]) == digest(pulled["value"])) == (kind == "daac")  # DAAC's value has its own phase


def test_custom_advantage_receives_the_log_ratio_of_appo():
    seen = []

    def advantage(steps, cfg, log_ratio):
        seen.append(log_ratio.shape)
        return purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)

    jax.eval_shape(purerl.make_train(KINDS["appo"], env=Varied(), advantage=advantage), KEY)
    assert set(seen) == {(32, 8)}
    with pytest.raises(purerl.ConfigError, match="log_ratio"):
        jax.eval_shape(purerl.make_train(KINDS["ppo"], env=Varied(), advantage=advantage), KEY)


def test_measure_receives_the_training_batch_and_metrics():
    def measure(state, batch, metrics):
        return {"mean_target": batch.steps.target.mean(), "twice": 2 * metrics["value_loss"]}

    train = purerl.make_train(KINDS["ppo"], env=Varied(), measure=measure)
    metrics = purerl.summarize(jax.jit(train)(KEY).metrics)
    np.testing.assert_allclose(metrics["twice"], 2 * metrics["value_loss"], rtol=1e-6)
    assert np.isfinite(metrics["mean_target"]).all()


def test_integers_and_booleans_are_accepted_as_metrics():
    found = lambda params, outputs, batch, cfg: (0, {"count": (batch.advantage > 0).sum(), "yes": True})
    metrics = purerl.summarize(jax.jit(purerl.make_train(KINDS["ppo"], env=Varied(), extra_loss=found))(KEY).metrics)
    assert (metrics["extra_loss/yes"] == 1).all()
    assert (metrics["extra_loss/count"] > 0).all()


def test_custom_config_fields_may_have_every_type():
    @purerl.configclass
    class Typed(purerl.PPOConfig):
        sizes: tuple[int, ...] = purerl.static((1, 2))
        kind: Literal["a", "b"] = purerl.static("a")
        maybe: int | None = purerl.static(None)
        weight: int = purerl.leaf(3)

    cfg = Typed(**SIZES, sizes=(3,), kind="b", weight=2)
    assert Typed.from_json(cfg.to_json()) == cfg
    assert purerl.make_train(cfg).cfg.weight.dtype == np.float32
    for wrong in ({"kind": "c"}, {"sizes": 3}, {"maybe": "x"}):
        with pytest.raises(purerl.ConfigError, match=next(iter(wrong))):
            purerl.validate(cfg.replace(**wrong))


@pytest.mark.long
def test_run_does_not_load_with_another_time_limit_or_torso(tmp_path):
    env = lambda limit: purerl.wrap_env(Achieving(), max_steps=limit)
    purerl.fit(KINDS["ppo"], directory=tmp_path, env=env(9), torso=residual_linen.Residual(8))
    for objects, says in (
        ({"env": env(3), "torso": residual_linen.Residual(8)}, "max_steps 9 in the checkpoint, max_steps 3 here"),
        ({"env": env(9), "torso": residual_linen.Residual(4)}, "width 8 in the checkpoint, width 4 here"),
    ):
        with pytest.raises(purerl.CheckpointMismatch, match=says):
            purerl.load(tmp_path, **objects)


def test_only_dense_kernels_use_the_configs_initialiser():
    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(8)(x)[:, None]
            return nn.MultiHeadDotProductAttention(num_heads=2)(x, x)[:, 0]

    for arch in ("separate", "shared"):
        params = purerl.make_train(KINDS["ppo"].replace(arch=arch), env=Varied(), torso=Attention).init(KEY).params
        torso = params["policy"]["torso"] if arch == "separate" else params["torso"]
        kernel = torso["Dense_0"]["kernel"]
        np.testing.assert_allclose(kernel @ kernel.T, 2 * np.eye(4), atol=1e-5)
        assert 0.2 < torso["MultiHeadDotProductAttention_0"]["query"]["kernel"].std() < 0.5  # flax's lecun_normal: 1 / sqrt(8)


def test_shared_torso_may_have_no_parameters():
    class Flat(nn.Module):
        def __call__(self, x):
            return x.reshape(x.shape[0], -1)

    train = purerl.make_train(KINDS["ppo"].replace(arch="shared"), env=Varied(), torso=Flat)
    assert jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
