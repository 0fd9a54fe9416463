"""Decoupled Advantage Actor-Critic: the advantage head, two separate networks, separate phases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import DAACConfig, Outputs
from purerl.algorithms.daac import advantage_term
from purerl.algorithms.ppg import value_phase
from purerl.algorithms.ppo import ppo_loss
from purerl.core.types import Network, Sample, Sequences
from purerl.networks.layers import OfAction
from tests.helpers.configs import NORMALISED, RICH
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.leaks import checking_leaks
from tests.helpers.probes import Probe, Rich, Varied, acting
from tests.helpers.programs import equations
from tests.helpers.tiny import CFG, digest, learner

KEY = jax.random.key(0)
SIZES = {name: getattr(CFG, name) for name in ("num_envs", "num_steps", "num_minibatches", "hidden", "lr")}
DAAC = DAACConfig(total_timesteps=64 * 6, e_v=3, value_freq=2, **SIZES)


def made(cfg=DAAC, env=None, **objects):
    return purerl.make_train(cfg, env=env or Varied(), **objects)


class Given:
    """A policy whose log-probabilities and entropies are given."""

    def __init__(self, given):
        self.given = given

    def log_prob(self, action):
        return self.given["logp_new"]

    def entropy(self):
        return self.given["entropy"]

    def encode(self, action):
        return jnp.zeros((1, 8, 1))


def test_policy_loss_matches_the_reference_vector(vectors):
    given, expected = vectors["daac_policy_loss"]
    given = {name: jnp.asarray(x, jnp.float32)[None] if np.ndim(x) else x for name, x in given.items()}
    head = {"advantage": OfAction(given["advantage_prediction"], jnp.zeros((1, 8, 1)))}
    network = Network(None, lambda *_: (Outputs(Given(given), jnp.zeros((1, 8)), head), ()))
    cfg = DAACConfig(clip_eps=given["clip"], ent_coef=given["entropy_coef"], adv_coef=given["adv_coef"])
    old = Sample((), (), (), given["logp_old"], (), given["advantages"], ())
    total, metrics = ppo_loss(learner(cfg, network), advantage_term)({}, Sequences(old, ()))
    np.testing.assert_allclose(metrics["advantage_loss"], expected["adv_loss_mean"], rtol=1e-5)
    np.testing.assert_allclose(total, expected["total"], rtol=1e-5)


def test_policy_and_value_networks_share_no_parameters():
    train = made()
    params = train.init(KEY).params
    assert set(params) == {"policy", "advantage", "value"}
    obs, first, row = train.init(KEY).actor.obs[None], jnp.ones((1, 4), bool), jnp.arange(1.0, 5.0)[None]
    batch = Sequences(Sample(obs, first, jnp.zeros((1, 4), jnp.int32), -row, row, row, row), ())
    value_loss = value_phase(learner(train.cfg, train.network)).loss
    losses = (value_loss, ppo_loss(learner(train.cfg, train.network), advantage_term))
    moves = []
    for loss in losses:
        gradient = jax.grad(loss, has_aux=True)(params, batch)[0]
        moves.append({group for group in gradient if any(jnp.abs(x).max() > 0 for x in jax.tree.leaves(gradient[group]))})
    assert moves == [{"value"}, {"policy", "advantage"}]


def test_predicted_advantage_depends_on_the_action():
    class Telling(Probe):
        """A task that pays 1 for action 1 and 0 for action 0."""

        def reward_of(self, state, action):
            return action.astype(jnp.float32)

    train = made(DAAC.replace(total_timesteps=64 * 100, gamma=0.0, e_pi=4, lr=1e-2, ent_coef=5.0), Telling())
    result = jax.jit(train)(KEY)
    state = result.state
    outputs, _ = train.network.apply(state.params, (), state.actor.obs[None], state.actor.first[None])
    worth = [outputs.heads["advantage"](jax.nn.one_hot(jnp.full((1, 4), action), 2)) for action in (0, 1)]
    assert (worth[1] - worth[0]).min() > 1  # standardised, the difference is about 2
    assert purerl.summarize(result.metrics)["advantage_loss"][-1] < 0.2


def test_each_phase_has_its_own_epochs_and_value_freq_skips_rollouts():
    train = made()
    plan = {phase.name: (phase.runs, phase.gradient_steps) for phase in train.plan.phases}
    assert plan == {"value": (3, 3 * 3 * 2), "policy": (6, 6 * 2)}
    result = jax.jit(train)(KEY)
    assert result.metrics["value_loss"].count.tolist() == [0, 6] * 3
    assert result.metrics["policy_loss"].count.tolist() == [2] * 6
    assert set(result.state.opt_state) == {"value", "policy"}


@pytest.mark.long
@pytest.mark.slow
def test_coefficients_affect_only_their_own_network():
    run = jax.jit(lambda cfg: (made(cfg).init(KEY).params, made(cfg)(KEY).state.params))
    start, still = run(DAAC.replace(lr=0.0))
    assert digest(still) == digest(start)
    moved, other = run(DAAC)[1], run(DAAC.replace(adv_coef=5.0))[1]
    assert all(digest(moved[group]) != digest(start[group]) for group in start)
    assert digest(other["policy"]) != digest(moved["policy"])
    start, late = run(DAAC.replace(value_freq=10))
    assert digest(late["value"]) == digest(start["value"])
    assert digest(late["policy"]) != digest(start["policy"])


@pytest.mark.long
@pytest.mark.parametrize(
    "env",
    [Rich(), *(pytest.param(acting(Varied, kind)(), marks=pytest.mark.slow, id=kind) for kind in ("box", "mixed"))],
)
def test_ratio_is_one_before_the_first_gradient_step(env):
    rich = RICH if isinstance(env, Rich) else {}
    cfg = DAAC.replace(**NORMALISED, **rich, lr=0.0, memory="gru", memory_size=8, sequence_length=8)
    metrics = purerl.summarize(jax.jit(made(cfg, env))(KEY).metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    assert metrics["clip_fraction"].max() == 0
    assert np.isfinite(metrics["advantage_loss"]).all()


@pytest.mark.long
def test_run_resumes_bit_for_bit(tmp_path):
    whole = fitted(cfg=DAAC)
    stopped(tmp_path, 5, cfg=DAAC)
    again = fitted(cfg=DAAC, directory=tmp_path)
    assert digest(again.state) == digest(whole.state)
    assert digest(again.metrics) == digest(whole.metrics)


@pytest.mark.long
def test_vmap_over_configs_and_seeds_trains_distinct_finite_runs():
    sweep = jax.vmap(lambda coef: DAAC.replace(adv_coef=coef))(jnp.array([0.0, 1.0]))
    run = jax.vmap(lambda cfg, key: made(cfg)(key), in_axes=(0, None))
    many = jax.jit(jax.vmap(run, in_axes=(None, 0)))(sweep, jax.random.split(KEY, 2))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(many.metrics))
    head = many.state.params["advantage"]["kernel"]
    assert (head[:, 0] != head[:, 1]).any()


@pytest.mark.long
@pytest.mark.slow
def test_strict_jax_modes_pass_and_program_size_is_constant():
    train = made(DAAC.replace(total_timesteps=64 * 2))
    with checking_leaks(), jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        jax.jit(train)(KEY)
    program = lambda **changes: equations(jax.make_jaxpr(made(DAAC.replace(**changes)))(KEY).jaxpr)
    # 1024 x 4 samples are a square number, as 16 x 4: the shuffle of any other number has a few more equations
    assert program(num_steps=1024, e_v=9, total_timesteps=10**9) == program()


def test_invalid_daac_configs_are_refused():
    with pytest.raises(purerl.ConfigError, match="no such field"):
        DAACConfig().replace(arch="shared")
    with pytest.raises(purerl.ConfigError, match="'batch', 'none'"):
        made(DAAC.replace(advantage_norm="minibatch"))
