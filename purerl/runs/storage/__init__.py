"""What a run writes to disk and reads back: checkpoints, metrics, and the migration of old formats."""
