"""Algorithms: each file composes the parts below it, and shows only what is its own."""
