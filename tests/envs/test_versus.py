"""Games against given opponents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.envs.random_rollout import random_actions

pytestmark = pytest.mark.slow
KEY = jax.random.key(0)
CFG = purerl.PPOConfig(total_timesteps=4096, num_envs=16, num_steps=32, hidden=(16,), episode_info=("won", "drawn"))


class Fixed:
    """A player that takes the first action with a mask of `mask`, or the last; None reads what a game does not show."""

    def __init__(self, last, carry=(), mask=True):
        self.last, self.carry, self.mask = last, carry, mask

    def initial_carry(self, num_envs):
        return self.carry

    def __call__(self, carry, obs, first, key):
        legal = obs["action_mask" if self.last is not None else "previous_action"] == self.mask
        last = legal.shape[-1] - 1 - jnp.argmax(legal[:, ::-1], axis=-1)
        return (last if self.last else jnp.argmax(legal, axis=-1)).astype(jnp.int32), carry


def outcomes(env, num_envs=256, num_steps=64):
    """Return the shares of games that random legal actions win, draw and lose."""

    def step(carry, key):
        env_state, obs = carry
        action = random_actions(env.action_space, key, num_envs, obs["action_mask"])
        after = env.step(jax.random.split(key, (2, num_envs)), env_state, action)
        return (after.env_state, after.obs), (after.terminated, after.reward, after.info["won"], after.info["drawn"])

    start = env.reset(jax.random.split(KEY, num_envs))
    _, (ended, reward, won, drawn) = jax.jit(lambda: jax.lax.scan(step, start, jax.random.split(KEY, num_steps)))()
    assert not reward[~ended].any()
    np.testing.assert_array_equal(reward > 0, won)
    return tuple(float(x.sum() / ended.sum()) for x in (won, drawn, reward < 0))


def test_random_players_win_and_draw_as_often_as_known():
    """Compare with the known shares of random moves in tic-tac-toe: the first player wins 0.585, the second 0.288."""
    np.testing.assert_allclose(outcomes(purerl.versus("tic_tac_toe")), [0.4365, 0.127, 0.4365], atol=0.02)


@pytest.mark.long
def test_agent_learns_to_beat_a_random_opponent_and_its_past():
    cfg = CFG.replace(total_timesteps=60_000, lr=3e-3)
    train = purerl.make_train(cfg, env=purerl.versus("tic_tac_toe"))
    result = jax.jit(train)(KEY)
    metrics = purerl.summarize(result.metrics)
    assert metrics["empty_masks"].sum() == 0
    assert metrics["episode_info/won"][-10:].mean() > metrics["episode_info/won"][:3].mean() + 0.2
    weak, strong = (purerl.versus("tic_tac_toe", train.policy(state)) for state in (train.init(KEY), result.state))
    against = lambda env: train.evaluate(result.state, KEY, 256, max_steps=9, env=env).returns.mean()
    assert against(weak) > against(strong) + 0.2


@pytest.mark.long
def test_opponents_may_be_traced_and_have_a_memory():
    cfg = CFG.replace(total_timesteps=1024, memory="gru", memory_size=8)
    base = purerl.make_train(cfg, env=purerl.versus("tic_tac_toe"))

    @jax.jit
    def updated(state, past):
        pool = (base.policy(past), base.policy(state))
        train = purerl.make_train(cfg, env=purerl.versus("tic_tac_toe", pool))
        return train.update(train.init(KEY))[1]

    first, second = base.init(jax.random.key(1)), base.init(jax.random.key(2))
    second = second.replace(params=jax.tree.map(lambda x: 100 * x, second.params))  # nearly deterministic, unlike the first
    metrics = [purerl.summarize(updated(*states)) for states in ((first, second), (second, first), (first, second))]
    assert updated._cache_size() == 1
    assert metrics[0]["loss"] == metrics[2]["loss"] != metrics[1]["loss"]
    assert metrics[0]["empty_masks"] == 0


def test_pool_draws_an_opponent_for_each_game():
    """One player always takes the first legal action, the other one the last."""

    env_state, obs = purerl.versus("tic_tac_toe", (Fixed(False), Fixed(True))).reset(jax.random.split(KEY, 512))
    match, _ = env_state
    board = obs["board"].any(-1).reshape(512, 9)
    moved = board.any(-1)
    np.testing.assert_allclose(moved.mean(), 0.5, atol=0.1)  # the game draws who begins
    np.testing.assert_array_equal(board[moved].argmax(-1), np.where(match.opponent[moved], 8, 0))
    np.testing.assert_allclose(match.opponent.mean(), 0.5, atol=0.1)


@pytest.mark.long
def test_games_that_end_before_the_agents_turn_are_drawn_again():
    """In this game of three players, one may win by the first move of another."""
    (match, _), _ = jax.jit(purerl.versus("sparrow_mahjong").reset)(jax.random.split(KEY, 512))
    assert not match.game.terminated.any()
    assert (match.game.current_player == 0).all()


def test_player_that_takes_an_illegal_action_loses():
    won, drawn, lost = outcomes(purerl.versus("tic_tac_toe", Fixed(False, mask=False)), num_steps=1)
    assert (won, drawn, lost) == (1, 0, 0)  # in the opponent's first turn after a move of the agent's, an action is illegal
    env = purerl.versus("tic_tac_toe")
    env_state, obs = env.reset(jax.random.split(KEY, 64))
    begun = ~obs["action_mask"].all(-1)
    after = env.step(jax.random.split(KEY, (2, 64)), env_state, jnp.argmin(obs["action_mask"], axis=-1))
    np.testing.assert_array_equal(after.reward[begun], -1)
    np.testing.assert_array_equal(after.terminated, begun)
    assert not after.info["won"].any()


@pytest.mark.long
def test_another_opponent_is_another_task(tmp_path):
    train = purerl.make_train(CFG, env=purerl.versus("tic_tac_toe"))
    init = jax.jit(train.init)
    opponents = [train.policy(init(jax.random.key(seed))) for seed in (0, 1)]
    envs = [purerl.versus("tic_tac_toe"), *(purerl.versus("tic_tac_toe", policy) for policy in opponents)]
    assert len({env.name for env in envs}) == 3
    assert len({purerl.versus("tic_tac_toe", Fixed(last)).name for last in (False, True)}) == 2
    assert purerl.versus("tic_tac_toe", opponents[0]).name == envs[1].name
    purerl.save(tmp_path, purerl.make_train(CFG, env=envs[1]), init(KEY))
    with pytest.raises(purerl.CheckpointMismatch, match="versus/tic_tac_toe"):
        purerl.load(tmp_path, env=envs[2])


def test_opponents_with_other_statistics_are_other_tasks():
    env = purerl.versus("tic_tac_toe")
    train = purerl.make_train(CFG.replace(normalize_obs=True), env=env)
    state = jax.jit(train.init)(KEY)
    moved = state.replace(statistics=jax.tree.map(lambda x: x + 1, state.statistics))
    assert len({purerl.versus("tic_tac_toe", train.policy(x)).name for x in (state, moved)}) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tictactoe",), "game = 'tictactoe': no such multi-player game; did you mean 'tic_tac_toe'"),
        (("pgx/2048",), "no such multi-player game"),
        ((object(),), "must be a multi-player game of Pgx"),
        (("tic_tac_toe", "random"), "opponent = 'random': must be a Policy"),
        (("sparrow_mahjong", Fixed(False, jnp.zeros((1, 2)))), "has one hidden state, but must control several of 3 players"),
        (("tic_tac_toe", Fixed(None)), "opponent: .*trained without memory_inputs"),
    ],
)
def test_wrong_games_and_opponents_are_refused(given, message):
    with pytest.raises(purerl.ConfigError, match=message):
        purerl.versus(*given)
