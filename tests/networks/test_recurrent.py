"""Recurrent networks: cells, resets of the hidden state, training sequences, and every other option with an RNN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import purerl
from purerl.acting.rollout import collect, reset_actor
from purerl.core.spaces import Discrete
from purerl.envs import make_env
from purerl.learning.update import sequences
from purerl.networks.actor_critic import actor_critic
from purerl.networks.recurrent import CELLS, GRU, LRU, LSTM, MinGRU
from purerl.runs.analysis.export import export
from tests.helpers.configs import EVERYTHING
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.probes import Probe, Rich
from tests.helpers.programs import equations
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
KINDS = ["gru", "lstm", "min_gru", "lru"]
one_cell = pytest.mark.parametrize("kind", ["gru", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
REMEMBERS = CFG.replace(memory="gru", memory_size=8)


class Counting(Probe):
    """A probe that observes the step in episodes of 5 steps, which divides no rollout here. Actions have no effect."""

    length = 5

    def observe_state(self, state):
        return jnp.full(1, state.time, jnp.float32) / 5


# --- the cells --------------------------------------------------------------------------------------------------------


def drawn(module, carry):
    """Return a cell's random parameters, its inputs, and where episodes begin."""
    x = jax.random.normal(KEY, (7, 4, 3))
    first = jnp.zeros((7, 4), bool).at[0].set(True).at[3, 1].set(True)
    params = module.init(KEY, carry, x, first)["params"]
    params = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.size), p.shape), params)
    return params, x, first


def flax_steps(cell, variables, carry, x, first):
    out = []
    for t in range(len(x)):
        carry = jax.tree.map(lambda h: jnp.where(first[t][:, None], 0.0, h), carry)  # noqa: B023
        carry, y = cell.apply({"params": variables}, carry, x[t])
        out.append(y)
    return jnp.stack(out)


@pytest.mark.slow
@pytest.mark.each_landing("gru-bfloat16")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("cell", "count"), [(GRU(5), 1), (LSTM(5), 2)], ids=["gru", "lstm"])
def test_gradient_over_a_sequence_equals_that_of_single_steps(cell, count, dtype):
    """Gradients of parameters, hidden state and inputs agree, under `vmap` too."""
    carry = jax.random.normal(jax.random.key(1), (count, 4, 5))
    carry = carry[0] if count == 1 else tuple(carry)
    params, x, first = drawn(cell, carry)
    weight = jax.random.normal(jax.random.key(2), (7, 4, 5))

    def at_once(params, carry, x):
        outputs, after = cell.apply({"params": params}, carry, x.astype(dtype), first)
        return (outputs * weight).sum() + sum(h.sum() for h in jax.tree.leaves(after))

    def one_by_one(params, carry, x):
        total = 0.0
        for t in range(len(x)):
            outputs, carry = cell.apply({"params": params}, carry, x[t : t + 1].astype(dtype), first[t : t + 1])
            total += (outputs[0] * weight[t]).sum()
        return total + sum(h.sum() for h in jax.tree.leaves(carry))

    got, want = (jax.grad(f, argnums=(0, 1, 2))(params, carry, x) for f in (at_once, one_by_one))
    close = lambda a, b: np.testing.assert_allclose(
        a, b, **({"rtol": 1e-4, "atol": 1e-5} if dtype == jnp.float32 else {"atol": 0.3})
    )
    jax.tree.map(close, got, want)
    many = lambda tree: jax.tree.map(lambda y: jnp.stack([y, 2 * y]), tree)
    rows = jax.vmap(jax.grad(at_once, argnums=(0, 1, 2)))(many(params), many(carry), many(x))
    jax.tree.map(lambda a, b: close(a[0], b), rows, want)


def gru_of_flax(params):
    """Return the parameters of a GRU as flax's cell has them."""
    bias = params["bias"].reshape(3, 5)
    gate = lambda name, i: {"kernel": params["input"][name]["kernel"], "bias": bias[i]}
    recurrent = {name: {"kernel": params["recurrent"][full]["kernel"]} for name, full in (("hr", "reset"), ("hz", "update"))}
    theirs = {"ir": gate("reset", 0), "iz": gate("update", 1), "in": gate("candidate", 2), **recurrent}
    return theirs | {"hn": {"kernel": params["recurrent"]["candidate"]["kernel"], "bias": params["recurrent_bias"]}}


def lstm_of_flax(params):
    """Return the parameters of an LSTM as flax's cell has them."""
    bias = params["bias"].reshape(4, 5)
    gates = {"i": "input", "f": "forget", "o": "output", "g": "candidate"}
    theirs = {f"i{short}": {"kernel": params["input"][name]["kernel"]} for short, name in gates.items()}
    for i, (short, name) in enumerate(gates.items()):
        theirs[f"h{short}"] = {"kernel": params["recurrent"][name]["kernel"], "bias": bias[i]}
    return theirs


def test_gru_equals_that_of_flax():
    h = jax.random.normal(jax.random.key(1), (4, 5))
    params, x, first = drawn(GRU(5), h)
    got, after = GRU(5).apply({"params": params}, h, x, first)
    np.testing.assert_allclose(got, flax_steps(nn.GRUCell(5), gru_of_flax(params), h, x, first), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(after, got[-1])


def test_lstm_equals_that_of_flax():
    c, h = jax.random.normal(jax.random.key(1), (2, 4, 5))
    params, x, first = drawn(LSTM(5), (c, h))
    got, after = LSTM(5).apply({"params": params}, (c, h), x, first)
    np.testing.assert_allclose(got, flax_steps(nn.LSTMCell(5), lstm_of_flax(params), (c, h), x, first), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(after[1], got[-1])


CELLS_OF_FLAX = {"gru": (GRU(5), nn.GRUCell(5), gru_of_flax), "lstm": (LSTM(5), nn.LSTMCell(5), lstm_of_flax)}


@pytest.mark.parametrize("kind", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_cell_gradient_equals_that_of_flax(kind):
    """Flax's cells are differentiated step by step, with episodes that begin inside the sequence."""
    cell, theirs, as_theirs = CELLS_OF_FLAX[kind]
    carry = jax.random.normal(jax.random.key(1), (4, 5))
    carry = (carry, 2 * carry) if kind == "lstm" else carry
    params, x, first = drawn(cell, carry)
    x, first, weight = x[:4], first[:4].at[0, 2:].set(False), jax.random.normal(jax.random.key(2), (4, 4, 5))
    ours = lambda params, carry, x: (cell.apply({"params": params}, carry, x, first)[0] * weight).sum()
    plain = lambda params, carry, x: (flax_steps(theirs, as_theirs(params), carry, x, first) * weight).sum()
    got, want = jax.jit(lambda *x: [jax.grad(f, argnums=(0, 1, 2))(*x) for f in (ours, plain)])(params, carry, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)
    for h in jax.tree.leaves(got[1]):
        assert np.asarray(h).any(-1).tolist() == [False, False, True, True]  # no gradient of an ended episode


def test_minimal_gru_equals_its_recurrence():
    h = jax.random.normal(jax.random.key(1), (4, 5))
    params, x, first = drawn(MinGRU(5), h)
    got, after = MinGRU(5).apply({"params": params}, h, x, first)
    for t in range(len(x)):
        gate, new = (
            x[t] @ params["input"][name]["kernel"] + params["bias"][i][None] for i, name in enumerate(("update", "candidate"))
        )
        h = jnp.where(first[t][:, None], 0.0, h)
        h = (1 - nn.sigmoid(gate)) * h + nn.sigmoid(gate) * new
        np.testing.assert_allclose(got[t], h, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(after, got[-1])


def test_lru_equals_its_recurrence():
    carry = tuple(jax.random.normal(jax.random.key(1), (2, 4, 5)))
    params, x, first = drawn(LRU(5), carry)
    got, after = LRU(5).apply({"params": params}, carry, x, first)
    params, x, first = jax.tree.map(np.asarray, (params, x, first))
    weight = {name: kernel["kernel"] for name, kernel in params["input"].items()}
    decay = np.exp(-np.exp(params["nu"]) + 1j * np.exp(params["theta"]))
    state = np.asarray(carry[0]) + 1j * np.asarray(carry[1])
    for t in range(len(x)):
        added = x[t] @ weight["real"] + 1j * (x[t] @ weight["imaginary"])
        state = decay * np.where(first[t][:, None], 0, state) + np.sqrt(1 - np.abs(decay) ** 2) * added
        y = np.concatenate([state.real, state.imag], -1) @ params["output"]["kernel"] + x[t] @ weight["direct"]
        np.testing.assert_allclose(got[t], nn.gelu(y + params["bias"]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after[0] + 1j * after[1], state, rtol=1e-4, atol=1e-5)


def test_units_of_a_new_lru_decay_over_1_to_1000_steps():
    params = tiny(REMEMBERS.replace(memory="lru")).init(KEY).params["policy"]["memory"]["layer_0"]
    np.testing.assert_allclose(np.exp(-np.exp(params["nu"]))[[0, -1]], [np.exp(-1), np.exp(-0.001)], rtol=1e-5)


def test_initial_recurrent_weights_are_orthogonal_and_biases_zero():
    params = tiny(REMEMBERS).init(KEY).params["policy"]["memory"]["layer_0"]
    for name in ("reset", "update", "candidate"):
        kernel = params["recurrent"][name]["kernel"]
        np.testing.assert_allclose(kernel @ kernel.T, np.eye(8), atol=1e-5)
    assert not params["bias"].any()
    assert not params["recurrent_bias"].any()


# --- resets of the hidden state ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.each_landing("shared-min_gru", "shared-lru")
@one_cell
@pytest.mark.parametrize("arch", ["separate", "shared"])
def test_hidden_state_is_reset_at_episode_starts(kind, arch):
    train = tiny(REMEMBERS.replace(memory=kind, arch=arch, memory_layers=2))
    params, obs = train.init(KEY).params, train.init(KEY).actor.obs[None]
    empty = train.network.initial_carry(4)
    full = jax.tree.map(lambda h: jax.random.normal(KEY, h.shape), empty)
    says = lambda carry, first: digest(train.network.apply(params, carry, obs, jnp.full((1, 4), first)))
    assert says(empty, True) == says(full, True) == says(empty, False)
    assert says(full, False) != says(full, True)


@one_cell
def test_outputs_depend_on_the_first_observation_through_distractors(kind):
    """Two episodes differ in their first observation alone; a new episode forgets it."""
    train = tiny(REMEMBERS.replace(memory=kind))
    params, carry = train.init(KEY).params, train.network.initial_carry(2)
    obs = jnp.repeat(jax.random.normal(KEY, (12, 1, 4)), 2, axis=1).at[0, 0].add(1.0)
    for starts, forgets in ((jnp.array([0]), False), (jnp.array([0, 6]), True)):
        first = jnp.zeros((12, 2), bool).at[starts].set(True)
        outputs, _ = train.network.apply(params, carry, obs, first)
        for last in (outputs.policy.logits[-1], outputs.value[-1]):
            assert np.array_equal(*last) == forgets


def combinations(*lengths):
    """Parametrize over cells and lengths: one length with one cell for every run, the others marked slow."""
    slow = lambda kind, length: [] if (kind, length) == ("gru", lengths[-1]) else [pytest.mark.slow]
    cells = [pytest.param(kind, length, marks=slow(kind, length)) for kind in KINDS for length in lengths]
    return pytest.mark.parametrize(("kind", "length"), cells)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_episode_forgets_an_observation_that_is_not_finite(kind):
    cell, zeros = CELLS[kind](4), jnp.zeros((1, 4))
    empty = {"gru": zeros, "min_gru": zeros}.get(kind, (zeros, zeros))
    x, first = jnp.full((2, 1, 3), jnp.nan).at[1].set(1.0), jnp.ones((2, 1), bool)
    outputs, params = cell.init_with_output(KEY, empty, x, first)
    want, _ = cell.apply(params, empty, x[1:], first[1:])
    np.testing.assert_allclose(outputs[0][1:], want, rtol=1e-6)
    _, spoilt = cell.apply(params, empty, x[:1], first[:1])
    np.testing.assert_allclose(cell.apply(params, spoilt, x[1:], first[1:])[0], want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.each_landing("min_gru-1", "lru-8")
@combinations(0, 8, 1, 2)
def test_ratio_is_one_across_episodes(kind, length):
    """The learning rate is 0, and each environment ends more than three episodes in a rollout."""
    cfg = REMEMBERS.replace(memory=kind, sequence_length=length, lr=0.0, lr_final=0.0, normalize_obs=True)
    metrics = purerl.summarize(jax.jit(tiny(cfg))(KEY).metrics)
    assert (metrics["episodes"] > 4 * 3).all()
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0)


def rolled_out(kind, num_steps, length=None, rollouts=1):
    cfg = REMEMBERS.replace(memory=kind)
    env = make_env("", (), {}, Counting())
    network = actor_critic(cfg, env.observation_space, env.action_space)
    actor = reset_actor(env, network, 3, KEY)
    params, found = network.init(KEY, actor.obs[None]), []
    for i in range(rollouts):
        actor, rollout, _ = collect(env, network, params, actor, jax.random.fold_in(KEY, i), num_steps, length=length)
        found.append(rollout)
    return network, params, actor, found


@pytest.mark.slow
@pytest.mark.each_landing("lru-4")
@combinations(16, 4, 2)
def test_replayed_hidden_states_equal_those_of_acting(kind, length):
    network, params, actor, [rollout] = rolled_out(kind, 16, length)
    data = sequences(rollout.steps, rollout.carry, length)
    outputs, after = network.apply(params, data.carry, data.steps.obs, data.steps.first)
    np.testing.assert_allclose(outputs.value, data.steps.value, atol=1e-6)
    np.testing.assert_allclose(outputs.policy.log_prob(data.steps.action), data.steps.log_prob, atol=1e-5)  # ratio 1
    following = jax.tree.map(lambda c, last: jnp.concatenate([c[1:], last[None]]).reshape(-1, 8), rollout.carry, actor.carry)
    for got, want in zip(jax.tree.leaves(after), jax.tree.leaves(following), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.slow
@pytest.mark.each_landing("min_gru")
@one_cell
def test_hidden_state_continues_across_rollouts(kind):
    _, _, last, twice = rolled_out(kind, 8, rollouts=2)
    _, _, same, [once] = rolled_out(kind, 16)
    value = jnp.concatenate([rollout.steps.value for rollout in twice])
    np.testing.assert_allclose(value, once.steps.value, atol=1e-6)
    assert len(set(np.round(value[:5, 0], 6).tolist())) == 5
    np.testing.assert_allclose(value[5:10], value[:5], atol=1e-6)  # each episode is like the first
    for got, want in zip(jax.tree.leaves(last.carry), jax.tree.leaves(same.carry), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"minibatches": "flat"}, "needs the steps of each environment in order"),
        ({"minibatches": "time"}, "needs the steps of each environment in order"),
        ({"minibatches": "env", "sequence_length": 4}, "cannot be split into sequences of 4"),
        ({"sequence_length": 3}, "must divide num_steps = 16"),
        ({"sequence_length": 32}, "must divide num_steps = 16"),
        ({"num_minibatches": 8}, "must divide the number of training sequences, 4"),
        ({"memory": "none", "memory_inputs": ("action",)}, "needs a recurrent network"),
        ({"memory_inputs": ("observation",)}, "distinct names from 'action', 'reward'"),
    ],
)
def test_options_that_would_split_sequences_are_refused(changes, says):
    with pytest.raises(purerl.ConfigError, match=says):
        tiny(REMEMBERS.replace(**changes))


@pytest.mark.long
def test_empty_hidden_state_equals_no_hidden_state():
    network = tiny().network
    empty = network._replace(
        initial_carry=lambda num_envs: {"nothing": ()}, apply=lambda p, c, o, f: (network.apply(p, (), o, f)[0], c)
    )
    assert digest(jax.jit(tiny(network=empty))(KEY).state.params) == digest(jax.jit(tiny(network=network))(KEY).state.params)


@pytest.mark.slow
def test_program_size_is_independent_of_the_rollout_length():
    sizes = [equations(jax.make_jaxpr(tiny(REMEMBERS.replace(num_steps=n, sequence_length=8)))(KEY).jaxpr) for n in (16, 1024)]
    assert sizes[0] == sizes[1]


# --- further inputs ---------------------------------------------------------------------------------------------------


def test_only_the_recurrent_layer_reads_memory_inputs():
    train = tiny(REMEMBERS.replace(memory_inputs=("action", "reward")))
    params = train.init(KEY).params["policy"]
    assert params["torso"]["Dense_0"]["kernel"].shape[0] == 4
    assert params["memory"]["layer_0"]["input"]["reset"]["kernel"].shape[0] == 16 + 2 + 1
    assert train.env.observation_space["previous_action"] == Discrete(2)


# --- all options together ---------------------------------------------------------------------------------------------

ALL = EVERYTHING.replace(
    memory="lstm", memory_size=8, memory_layers=2, memory_inputs=("action", "reward"), sequence_length=8, minibatches="auto"
)


@pytest.mark.long
def test_ratio_is_one_with_every_option():
    still = ALL.replace(lr=0.0, lr_max=0.0, lr_min=0.0, warmup_steps=0, learning_starts=0, compute_dtype="float32")
    result = jax.jit(purerl.make_train(still, env=Rich()))(KEY)
    metrics = purerl.summarize(result.metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0)
    assert not metrics["info/illegal"].any()


@pytest.mark.long
def test_recurrent_run_with_every_option_resumes_bit_for_bit(tmp_path):
    whole = fitted(cfg=ALL, env=Rich())
    stopped(tmp_path, 4, cfg=ALL, env=Rich())
    assert digest(fitted(cfg=ALL, env=Rich(), directory=tmp_path).state) == digest(whole.state)
    loaded = purerl.load(tmp_path, env=Rich())
    episodes = loaded.train.evaluate(loaded.state, KEY, 16, max_steps=6)
    assert episodes.finished.all()
    assert not episodes.info["illegal"].any()


@pytest.mark.slow
@pytest.mark.each_landing("gru")
@pytest.mark.parametrize("kind", KINDS)
def test_run_in_bfloat16_resumes_in_the_middle_of_an_episode_bit_for_bit(kind, tmp_path):
    cfg = REMEMBERS.replace(memory=kind, memory_layers=2, compute_dtype="bfloat16", sequence_length=8)
    whole = fitted(cfg=cfg)
    part = stopped(tmp_path, 4, cfg=cfg)
    assert all(np.asarray(x).any() for x in jax.tree.leaves(part.state.actor.carry))
    assert digest(fitted(cfg=cfg, directory=tmp_path).state) == digest(whole.state)


@pytest.mark.slow
def test_run_does_not_resume_with_another_hidden_state(tmp_path):
    cfg = REMEMBERS.replace(memory="lru")
    stopped(tmp_path, 2, cfg=cfg)
    for name, other in {"memory_size": 16, "memory": "gru"}.items():
        with pytest.raises(purerl.CheckpointMismatch, match=f"{name}: .* in the checkpoint, {other!r} here"):
            fitted(cfg=cfg.replace(**{name: other}), directory=tmp_path)


@pytest.mark.slow
@pytest.mark.each_landing("lru")
@pytest.mark.parametrize("kind", KINDS)
def test_ratio_is_one_in_bfloat16(kind):
    cfg = REMEMBERS.replace(memory=kind, compute_dtype="bfloat16", lr=0.0, lr_final=0.0)
    metrics = purerl.summarize(jax.jit(tiny(cfg))(KEY).metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.each_landing("lru")
@pytest.mark.parametrize("kind", KINDS)
def test_exported_memory_acts_like_the_policy_across_episodes(kind):
    train = tiny(REMEMBERS.replace(memory=kind))
    state = train.init(KEY)
    saved, policy = jax.export.deserialize(bytearray(export(train, state))).call, train.policy(state)
    carries = {name: train.network.initial_carry(2) for name in ("saved", "policy")}
    for i in range(8):
        key, obs, first = jax.random.key(i), jax.random.normal(jax.random.key(i), (2, 4)), jnp.array([i in (0, 5), i == 0])
        got, carries["saved"] = saved(carries["saved"], obs, first, jax.random.key_data(key), False)
        want, carries["policy"] = policy(carries["policy"], obs, first, key)
        np.testing.assert_array_equal(got, want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *carries.values())


@pytest.mark.slow
@pytest.mark.each_landing("lru-False")
@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lru"])
def test_vmap_over_seeds_and_configs_equals_single_runs(kind, box):
    cfg = REMEMBERS.replace(memory=kind, sequence_length=4)
    sweep = jax.vmap(lambda x: cfg.replace(lr=x))(jnp.array([1e-3, 1e-2]))
    run = jax.vmap(lambda cfg, key: tiny(cfg, box=box)(key).state, in_axes=(0, None))
    many = jax.jit(jax.vmap(run, in_axes=(None, 0)))(sweep, jax.random.split(KEY, 2))
    assert jax.tree.leaves(many.actor.carry)[0].shape == (2, 2, 4, 8)
    alone = jax.jit(tiny(cfg.replace(lr=1e-2), box=box))(jax.random.split(KEY, 2)[0]).state
    for got, want in zip(jax.tree.leaves(many.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(got[0, 1], want, rtol=2e-2, atol=2e-3)


def test_minimal_gru_stays_float32_with_64_bits_enabled():
    with jax.enable_x64(True):
        with pytest.warns(UserWarning, match="observations of float64"):
            train = purerl.make_train(purerl.PPOConfig(memory="min_gru", memory_size=8))
        assert {x.dtype for x in jax.tree.leaves(jax.eval_shape(train.init, jax.random.key(0)).params)} == {np.dtype(np.float32)}
