"""Files of a run: checkpoints, metrics, and descriptions of the objects that made it."""
