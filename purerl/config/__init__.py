"""Configs: field types, fields shared by all algorithms, fields of each algorithm, and presets."""
