"""Learning from rollouts: rewards, advantages, losses, batches, phases and optimizers."""
