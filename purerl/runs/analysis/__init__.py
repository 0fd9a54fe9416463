"""Analysis of finished runs: plots, statistics over seeds, drawings of episodes, exported policies."""
