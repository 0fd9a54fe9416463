"""Files of a run: checkpoints, metrics, and the objects that made it."""
