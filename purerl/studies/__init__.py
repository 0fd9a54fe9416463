"""Questions that take many runs: sweeps, tuning, comparisons, and what a folder has."""
