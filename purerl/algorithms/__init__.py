"""Algorithms: each file shows what its paper adds. `registry` lists them, and what a new one needs."""
