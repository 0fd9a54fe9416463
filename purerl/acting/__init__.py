"""Acting: rollouts, policies, evaluation, and running statistics for normalisation."""
