"""Analysis of finished runs: plots, statistics over seeds, rendered episodes, exported policies."""
