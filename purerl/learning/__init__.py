"""Learning from rollouts: rewards, advantages, losses, training sets, phases and optimizers."""
