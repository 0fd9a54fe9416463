"""Acting: rollouts, policies, evaluation, and the statistics that normalise what networks see."""
