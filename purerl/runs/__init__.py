"""Runs on the host: `fit`, directories, checkpoints, evaluations, and what shows and draws them."""
