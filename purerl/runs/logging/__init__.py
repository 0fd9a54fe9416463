"""Displays of a run while it trains: the terminal, and recorders for files and services."""
