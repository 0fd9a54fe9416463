"""Self-play in rounds against a pool of the policies of earlier rounds, with one compiled program for all rounds."""

import jax

import purerl

GAME = "tic_tac_toe"


def league(cfg, key, rounds, updates, size=2):
    """Return the training function, and the states after each round."""
    base = purerl.make_train(cfg, env=purerl.versus(GAME))

    @jax.jit
    def play(state, past):
        train = purerl.make_train(cfg, env=purerl.versus(GAME, tuple(map(base.policy, past))))
        begun = train.init(state.key).replace(params=state.params, opt_state=state.opt_state, clock=state.clock)
        return jax.lax.scan(lambda state, _: train.update(state), begun, length=updates)

    states = [base.init(key)] * size
    for _ in range(rounds):
        state, _ = play(states[-1], states[-size:])
        states.append(state)
    return base, states[size:]
