"""Training runs on the host: `fit`, run directories, checkpoints, evaluations, logging and plots."""
