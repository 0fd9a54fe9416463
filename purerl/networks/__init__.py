"""Policy and value networks, and the distributions over actions."""
