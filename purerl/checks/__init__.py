"""Checks of a config against its environment and network, before anything is compiled.

Each `check_...` raises a ConfigError with every problem it finds.
"""
