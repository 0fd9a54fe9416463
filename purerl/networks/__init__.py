"""Policy and value networks, and distributions over actions."""
