"""Studies over many runs: sweeps, tuning, comparisons, and lists of the runs in a folder."""
