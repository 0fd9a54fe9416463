"""Multi-player games for one agent, against given opponents."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.core.environment import Environment
from purerl.core.errors import config_error, convert_errors
from purerl.core.keys import fold_in_name
from purerl.core.spaces import Discrete
from purerl.core.types import PyTree
from purerl.envs.functions import wrap_env
from purerl.envs.suites import adapter


class Match(NamedTuple):
    """The state of one game.

    Attributes:
        game: the state of the Pgx game.
        opponent: index of this episode's opponent in the tuple of opponents.
        carries: the hidden state of each opponent's policy.
        first: True if the opponent has not moved yet.
    """

    game: Any
    opponent: jax.Array
    carries: tuple[PyTree, ...]
    first: jax.Array


class _RandomPlayer:
    """A player that chooses a valid action uniformly at random."""

    def initial_carry(self, num_envs: int) -> tuple[()]:
        return ()

    def __call__(self, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple[jax.Array, PyTree]:
        return jax.random.categorical(key, jnp.where(obs["action_mask"], 0.0, -jnp.inf)), carry


class _Versus:
    """A game with the methods and spaces that `purerl.wrap_env` needs. The agent is player 0."""

    def __init__(self, game: Any, opponents: tuple[Any, ...]):
        self._game, self._opponents, self.action_space = game, opponents, Discrete(int(game.num_actions))

    def reset(self, key: jax.Array) -> tuple[Match, PyTree]:
        opponent = jax.random.randint(fold_in_name(key, "opponent"), (), 0, len(self._opponents))
        carries = tuple(player.initial_carry(1) for player in self._opponents)

        def begin(drawn):
            key, now = jax.random.split(drawn[0])
            match = Match(self._game.init(fold_in_name(now, "game")), opponent, carries, jnp.bool_(True))
            return key, self._until_own_turn(fold_in_name(now, "moves"), match)[0]

        is_over = lambda drawn: drawn[1].game.terminated | drawn[1].game.truncated
        # If a game ends before the agent's first turn, start another game with a new key.
        _, match = jax.lax.while_loop(is_over, begin, begin((key, None)))
        return match, _observe(match.game)

    def step(self, key: jax.Array, match: Match, action: jax.Array) -> tuple:
        game = self._game.step(match.game, action, fold_in_name(key, "own move"))
        match, reward = self._until_own_turn(fold_in_name(key, "moves"), match._replace(game=game))
        reward, game = reward + game.rewards[0], match.game
        info = {"won": game.terminated & (reward > 0), "drawn": game.terminated & (reward == 0)}
        return match, _observe(game), reward, game.terminated, game.truncated, info

    def _until_own_turn(self, key: jax.Array, match: Match) -> tuple[Match, jax.Array]:
        """Let the opponent move until the agent's turn or the end of the game; sum the agent's rewards from these moves."""

        def is_others_turn(state):
            game = state[0].game
            return (game.current_player != 0) & ~game.terminated & ~game.truncated

        def move(state):
            match, reward, key = state
            key, of_player, of_game = jax.random.split(key, 3)
            obs = jax.tree.map(lambda x: x[None], _observe(match.game))
            moves = [p(carry, obs, match.first[None], of_player) for p, carry in zip(self._opponents, match.carries, strict=True)]
            actions, carries = zip(*moves, strict=True)
            game = self._game.step(match.game, jnp.concatenate(actions)[match.opponent], of_game)
            return Match(game, match.opponent, carries, jnp.bool_(False)), reward + game.rewards[0], key

        # A loop, since the opponent may make any number of moves in a row.
        match, reward, _ = jax.lax.while_loop(is_others_turn, move, (match, jnp.float32(0), key))
        return match, reward


def versus(game: Any, opponent: Callable | tuple[Callable, ...] = ()) -> Environment:
    """Return a multi-player game as an environment for one agent. The opponent controls all other players.

    Observations are dicts with the entries `board`, from the view of the player to move, and `action_mask`, the valid actions.
    The reward of a step is the sum of the agent's rewards from its own move and from all moves before its next turn. The game
    chooses at random who begins. An action that the mask excludes ends the game: for Pgx, the player that took it has lost.
    `info["won"]` and `info["drawn"]` are 1 at the end of a won or tied game, else 0; the config
    field `episode_info=("won",)` adds the win rate to the metrics. Games have no time limit, so evaluations need `max_steps`.
    `notebooks/14_self_play.ipynb` trains by self-play.

    Args:
        game: the name of a multi-player game of Pgx, such as "connect_four", or the game object.
        opponent: a `Policy` that was trained on the same game, or a tuple of policies, from which each episode chooses one at
          random. By default, the opponent moves at random. Parameters of policies may be traced, so that one compiled program
          trains against different opponents. At each move, all policies of a tuple are evaluated.

    Raises:
        ConfigError: the game does not exist or has one player, or an opponent is not a policy or cannot play the game.

    Example:
        >>> env = purerl.versus("tic_tac_toe")
        >>> cfg = purerl.PPOConfig(total_timesteps=1024, episode_info=("won",))
        >>> result = jax.jit(purerl.make_train(cfg, env=env))(jax.random.key(0))
        >>> next_env = purerl.versus("tic_tac_toe", purerl.make_train(cfg, env=env).policy(result.state))
    """
    if isinstance(game, str):
        suite, name = adapter(f"pgx/{game.removeprefix('pgx/')}")
        game = suite.game_of_several(name)
    if not all(hasattr(game, name) for name in ("init", "step", "num_actions", "num_players")) or game.num_players < 2:
        raise config_error("game", game, "must be a multi-player game of Pgx, such as 'connect_four'")
    opponents = opponent if isinstance(opponent, tuple) else (opponent,)
    obs = jax.eval_shape(lambda: jax.tree.map(lambda x: x[None], _observe(game.init(jax.random.key(0)))))
    for player in opponents:
        if not (callable(player) and hasattr(player, "initial_carry")):
            raise config_error("opponent", player, "must be a Policy, as train.policy(state) returns it, or a tuple of policies")
        carry = jax.eval_shape(lambda player=player: player.initial_carry(1))
        if game.num_players > 2 and jax.tree.leaves(carry):
            hint = f"has one hidden state, but must control several of {game.num_players} players; use a feedforward policy"
            raise config_error("opponent", player, hint)
        call = "must be trained without memory_inputs and frame_stack; opponent(carry, obs, first, key)"
        with convert_errors("opponent", call):
            jax.eval_shape(player, carry, obs, jax.ShapeDtypeStruct((1,), bool), jax.random.key(0))
    made = wrap_env(_Versus(game, opponents or (_RandomPlayer(),)))
    return made._replace(name=f"versus/{game.id}: {', '.join(map(_text, opponents)) or 'random moves'}")


def _text(player: Any) -> str:
    """Return an opponent's class and, unless traced, a hash of its numbers, which identify the opponent in checkpoints."""
    is_number = lambda x: isinstance(x, jax.Array | np.ndarray | np.generic | int | float)
    leaves = [x for x in jax.tree.leaves(getattr(player, "__dict__", ())) if is_number(x)]
    if any(isinstance(x, Tracer) for x in leaves):
        return f"{type(player).__name__}, traced"
    return f"{type(player).__name__} {hashlib.sha256(b''.join(np.asarray(x).tobytes() for x in leaves)).hexdigest()[:8]}"


def _observe(game: Any) -> dict[str, jax.Array]:
    return {"board": game.observation, "action_mask": game.legal_action_mask}
