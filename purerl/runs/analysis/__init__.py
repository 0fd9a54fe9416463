"""What looks at a run afterwards: plots, statistics over seeds, drawings of episodes, exported policies."""
