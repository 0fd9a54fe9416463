"""Checks of a config against its environment and network, before anything is compiled.

Each `check_...` raises one ConfigError that lists all problems found.
"""
