import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import purerl
from purerl.algorithms.ppo import ppo_loss, value_term
from purerl.config.algorithms import PPOConfig
from purerl.core.keys import clock_at
from purerl.core.reductions import Axis, on_axis
from purerl.core.types import Sample, Sequences
from purerl.envs import make_env
from purerl.learning.optimizers import Optimizer
from purerl.learning.phases import Phase, init_phase, make_phase, moving_groups, run_phase
from purerl.learning.update import sequences
from purerl.networks.actor_critic import actor_critic
from tests.helpers.programs import branches
from tests.helpers.tiny import CFG, PLAIN, learner, tiny

KEY = jax.random.key(0)


def seen(params, batch):
    """Return a loss whose gradient is a histogram of the samples in its minibatch."""
    return (params["policy"] * jax.nn.one_hot(batch.steps.ravel(), params["policy"].size).sum(0)).sum(), {}


def phase_of(loss, lr=1.0, optimizer=None, **changes):
    moving = Optimizer(optimizer or optax.identity(), True, rate=lambda clock, step, steps: jnp.float32(lr))
    default = {"name": "p", "loss": loss, "optimizer": moving, "groups": None, "epochs": 1, "minibatches": 1}
    return Phase(**default | {"max_grad_norm": jnp.float32(jnp.inf)} | changes)


def run(phase, params, data, clock=None):
    clock = clock_at(0) if clock is None else clock
    return jax.jit(lambda *a: run_phase(phase, *a))(clock, KEY, params, init_phase(phase, params), data)


# --- training sequences -----------------------------------------------------------------------------------------------


class Seen(Exception):
    """An exception that carries the first minibatch out of a loss."""


@pytest.mark.parametrize(
    ("layout", "key", "count"),
    [("flat", "skrl_contiguous", 2), ("time", "rlib_time_rows", 2), ("env", "env_columns_first_of_3", 3)],
)
def test_minibatch_layouts_match_the_reference_vector(vectors, monkeypatch, layout, key, count):
    """The identity replaces the random order, so that the first minibatch can be compared."""
    given, expected = vectors["minibatch_layouts"]
    T, B = given["T"], given["N"]
    length, block = {"flat": (1, 1), "time": (1, B), "env": (T, 1)}[layout]

    def loss(params, batch):
        raise Seen(batch.steps.T.ravel())

    monkeypatch.setattr("purerl.learning.phases.permutation", lambda key, n: jnp.arange(n))
    phase, params = phase_of(loss, minibatches=count, block=block), {"policy": jnp.zeros(1)}
    data = sequences(jnp.arange(T * B).reshape(T, B), (), length)
    with jax.disable_jit(), pytest.raises(Seen) as seen:
        run_phase(phase, clock_at(0), KEY, params, init_phase(phase, params), data)
    np.testing.assert_array_equal(seen.value.args[0], expected[key][0])


def test_time_minibatches_keep_rows_together_and_cover_all():
    T, B = 6, 4
    rows = lambda params, batch: ((params["policy"] * jax.nn.one_hot(batch.steps[0] // B, T).sum(0)).sum(), {})
    counted = lambda params, batch: (rows(params, batch)[0], {"rows": (jax.nn.one_hot(batch.steps[0] // B, T).sum(0) == B).sum()})
    phase = phase_of(counted, minibatches=3, block=B)
    moved, _, metrics = run(phase, {"policy": jnp.zeros(T)}, sequences(jnp.arange(T * B).reshape(T, B), (), 1))
    np.testing.assert_array_equal(moved["policy"], np.full(T, -B))
    assert metrics["rows"].total == T  # two whole rows in each of three minibatches


# --- the gradient loop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "minibatches", "epochs"), [(12, 4, 3), (10, 1, 2), (7, 7, 1)])
def test_every_epoch_sees_every_sample_once(n, minibatches, epochs):
    params = {"policy": jnp.zeros(n)}
    data = Sequences(jnp.arange(n)[None], ())
    moved, _, metrics = run(phase_of(seen, epochs=epochs, minibatches=minibatches), params, data)
    np.testing.assert_array_equal(moved["policy"], np.full(n, -epochs))
    assert metrics["grad_norm"].count == epochs * minibatches


def test_each_epoch_has_its_own_order():
    def order(params, batch):
        return (params["policy"] * 0).sum(), {"first": batch.steps[0, 0].astype(jnp.float32)}

    data = Sequences(jnp.arange(1000)[None], ())
    totals = [run(phase_of(order, epochs=e, minibatches=2), {"policy": jnp.zeros(1)}, data)[2]["first"].total for e in (1, 2, 3)]
    assert len(set(np.diff([0, *totals]).tolist())) == 3


def test_options_of_make_phase_replace_the_values_of_the_config():
    loss = lambda params, batch: (jnp.float32(0), {})
    phase = make_phase(learner(PPOConfig(**PLAIN)), "aux", loss, 2, minibatches=1, groups=("value",))
    assert (phase.epochs, phase.minibatches, phase.groups) == (2, 1, ("value",))


@pytest.mark.parametrize("option", [False, True])
@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"lr_schedule": "polynomial", "lr": 1.0, "lr_final": 0.0, "total_timesteps": 64}, -1.5),  # rates 1 and 0.5
        ({"lr_schedule": "kl_adaptive", "lr_kl_every": "epoch", "lr": 1e-3, "lr_max": 1.0}, -1e-3 * (1 + 1 / 1.5)),
    ],
)
def test_counts_of_a_changed_phase_are_those_of_its_schedules(fields, change, option):
    """A phase of two epochs of one minibatch, made from a config of one epoch of four minibatches."""
    cfg = PPOConfig(**PLAIN | {"num_epochs": 1, "num_minibatches": 4} | fields)
    loss = lambda params, batch: (params["policy"], {"kl": jnp.float32(0.05)})
    counts = {"epochs": 2, "minibatches": 1}
    made_with = learner(cfg)._replace(parts=learner(cfg).parts._replace(optimizer=Optimizer(optax.identity(), True)))
    phase = make_phase(made_with, "p", loss, counts["epochs"] if option else 1, **({"minibatches": 1} if option else {}))
    phase = phase._replace(max_grad_norm=jnp.float32(jnp.inf), precompute=None, block=1, **counts)
    moved, _, _ = run(phase, {"policy": jnp.float32(0)}, Sequences(jnp.zeros((1, 4)), ()))
    np.testing.assert_allclose(moved["policy"], change, rtol=1e-5)


def test_phase_trains_only_its_groups():
    loss = lambda params, batch: ((params["policy"] * params["value"]).sum(), {})
    params = {"policy": jnp.ones(2), "value": jnp.full(2, 3.0)}
    moved, _, metrics = run(phase_of(loss, lr=0.1, groups=("policy",)), params, Sequences(jnp.zeros((1, 4)), ()))
    np.testing.assert_allclose(moved["policy"], 1 - 0.1 * 3, rtol=1e-6)
    np.testing.assert_array_equal(moved["value"], params["value"])
    assert "grad_norm/value" not in metrics
    assert moving_groups(phase_of(loss, groups=()), params) == {}


def test_algorithms_whose_phases_report_no_loss_are_refused():
    phases = lambda learner: [make_phase(learner, "quiet", lambda params, batch: (jnp.float32(0), {}), 1, follows_kl=False)]
    algorithm = lambda cfg, env, network, parts: purerl.ppo(cfg, env, network, parts, phases)
    with pytest.raises(purerl.ConfigError, match="no phase's loss returns a metric named 'loss'"):
        purerl.make_train(PPOConfig(**PLAIN), algorithm=algorithm)


@pytest.mark.parametrize("max_norm", [0.5, 100.0, np.inf])
def test_joint_norm_is_clipped_and_all_norms_are_reported(max_norm):
    loss = lambda params, batch: (3 * params["policy"].sum() + 4 * params["value"].sum(), {})
    params = {"policy": jnp.zeros(1), "value": jnp.zeros(1)}
    phase = phase_of(loss, max_grad_norm=jnp.float32(max_norm))
    moved, _, metrics = run(phase, params, Sequences(jnp.zeros((1, 4)), ()))
    scale = min(1, max_norm / 5)
    np.testing.assert_allclose([moved["policy"][0], moved["value"][0]], [-3 * scale, -4 * scale], rtol=1e-6)
    assert [metrics[n].read() for n in ("grad_norm", "grad_norm/policy", "grad_norm/value")] == [5, 3, 4]


def test_phase_runs_and_is_counted_every_third_update():
    params = {"policy": jnp.zeros(4)}
    phase, data = phase_of(seen, every=3), Sequences(jnp.arange(4)[None], ())
    for i in (0, 1, 2, 3, 5, 2**32 + 1):
        moved, _, metrics = run(phase, params, data, clock_at(i))
        ran = i % 3 == 2
        assert moved["policy"].any() == ran
        assert metrics["grad_norm"].count == int(ran)


def test_scheduled_phase_stays_a_branch_under_vmap_over_seeds():
    params, data = {"policy": jnp.zeros((5, 4))}, Sequences(jnp.arange(4)[None], ())
    phase = phase_of(seen, every=3)
    opt_state = jax.vmap(lambda p: init_phase(phase, p))(params)
    go = lambda clock, params, opt_state: run_phase(phase, clock, KEY, params, opt_state, data)
    clocks = jax.tree.map(lambda x: jnp.broadcast_to(x, 5), clock_at(0))
    assert branches(jax.vmap(go, in_axes=(None, 0, 0)), clock_at(0), params, opt_state) == 1
    assert branches(jax.vmap(go), clocks, params, opt_state) == 0


def test_adam_counts_every_gradient_step():
    params = {"policy": jnp.zeros(12)}
    phase = phase_of(seen, optimizer=optax.scale_by_adam(), epochs=3, minibatches=4)
    _, opt_state, _ = run(phase, params, Sequences(jnp.arange(12)[None], ()))
    assert opt_state.count == 12


@pytest.mark.slow
def test_minibatch_steps_add_up_to_the_full_gradient():
    """M minibatches of an epoch equal M steps on the whole batch, by plain descent at a tiny learning rate."""
    cfg = PPOConfig(**PLAIN, advantage_norm="none")
    env = make_env("CartPole-v1", (), {})
    network = actor_critic(cfg, env.observation_space, env.action_space)
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(1, 64, *shape)), jnp.float32)
    steps = Sample(draw(4), jnp.zeros((1, 64), bool), jnp.int32(draw() > 0), draw() * 0.1 - 0.7, draw(), draw(), draw())
    params = network.init(KEY, steps.obs)
    loss = ppo_loss(learner(cfg, network), value_term)
    # Steps of 1e-6 are below the resolution of float32 parameters, so the optimizer's state sums them.
    adding_up = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params), lambda g, total, _: (g, jax.tree.map(jnp.add, total, g))
    )
    _, gone, _ = run(phase_of(loss, 1e-6, adding_up, minibatches=8), params, Sequences(steps, ()))
    gradient = jax.grad(lambda p: loss(p, Sequences(steps, ()))[0])(params)
    for group in params:
        want = 8 * ravel_pytree(gradient[group])[0]
        assert jnp.linalg.norm(gone[group] - want) < 1e-3 * jnp.linalg.norm(want)


# --- devices ----------------------------------------------------------------------------------------------------------


def test_gradients_are_averaged_over_a_device_axis():
    loss = lambda params, batch: ((params["policy"] * batch.steps.mean()).sum(), {})
    params, steps = {"policy": jnp.ones(1)}, jnp.arange(8.0).reshape(4, 1, 2)
    phase = phase_of(loss)
    go = lambda steps: run_phase(
        phase,
        clock_at(0),
        KEY,
        params,
        init_phase(phase, params),
        Sequences(steps, ()),
    )[0]
    moved = jax.vmap(on_axis(go, Axis("d", 4)), axis_name="d")(steps)
    np.testing.assert_allclose(moved["policy"][:, 0], np.full(4, 1 - 3.5), rtol=1e-6)


@pytest.mark.parametrize("frozen", [("torso",), ("policy/torso",), "policy"])
def test_frozen_groups_that_do_not_exist_are_refused(frozen):
    phases = lambda learner: [phase._replace(frozen=frozen) for phase in purerl.ppo_phases(learner)]
    with pytest.raises(purerl.ConfigError, match="must name parameter groups in a tuple, from policy, value"):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts, phases))


def reporting(name):
    """Return phases whose loss, or that of an additional phase, has a metric of this name."""

    def phases(learner):
        loss = lambda params, batch: (jnp.float32(0), {name: jnp.float32(1)})
        return [make_phase(learner, name, loss, 1, follows_kl=False, prefix="own/"), *purerl.ppo_phases(learner)]

    return phases


@pytest.mark.parametrize(("name", "says"), [("reward", "is already the name of a metric"), ("ppo", "is the name of two phases")])
def test_names_of_phases_and_their_metrics_must_be_new(name, says):
    with pytest.raises(purerl.ConfigError, match=f"algorithm = '{name}': {says}"):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts, reporting(name)))
    tiny(algorithm=lambda *parts: purerl.ppo(*parts, reporting("mine")))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"groups": ("polcy",)}, "groups = 'polcy': the phase 'small' must name parameter groups in a tuple, from policy, value"),
        ({"groups": "policy"}, "groups = 'policy': the phase 'small' must name parameter groups in a tuple"),
        ({"groups": ()}, "the phase 'small' trains no group"),
        ({"epochs": 2.5}, "epochs = 2.5: must be an int of at least 0 in the phase 'small'"),
        ({"start": None}, "start = None: must be an int of at least 0 in the phase 'small'"),
        ({"every": 0}, "every = 0: must be an int of at least 1 in the phase 'small'"),
        ({"minibatches": 3}, "minibatches = 3: must divide the 64 sequences of an epoch in the phase 'small'"),
        ({"accumulate": 3}, "accumulate = 3: must divide the 32 sequences of a minibatch"),
    ],
)
def test_wrong_options_of_a_phase_are_refused(options, says):
    def phases(learner):
        loss = lambda params, batch: (sum(jnp.vdot(x, x) for x in jax.tree.leaves(params)), {})
        small = make_phase(learner, "small", loss, 1, follows_kl=False, prefix="own/")._replace(**options)
        return [small, *purerl.ppo_phases(learner)]

    with pytest.raises(purerl.ConfigError, match=says):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts, phases))


@pytest.mark.parametrize(("changes", "metric"), [({"target_kl": 0.02}, "approx_kl"), ({"lr_schedule": "kl_adaptive"}, "kl")])
def test_losses_without_the_metrics_that_control_their_phase_are_refused(changes, metric):
    def phases(learner):
        loss = lambda params, batch: (sum(jnp.vdot(x, x) for x in jax.tree.leaves(params["policy"])), {})
        return [make_phase(learner, "small", loss, 1, groups=("policy",), prefix="own/"), *purerl.ppo_phases(learner)]

    with pytest.raises(
        purerl.ConfigError, match=f"algorithm = '{metric}': is not returned by the loss of the phase 'small'; use follows_kl"
    ):
        tiny(CFG.replace(**changes), algorithm=lambda *parts: purerl.ppo(*parts, phases))


def test_phases_must_be_a_list():
    with pytest.raises(purerl.ConfigError, match="must be a list of phases"):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts, lambda learner: purerl.ppo_phases(learner)[0]))
