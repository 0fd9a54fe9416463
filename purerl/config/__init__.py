"""Configs: how fields work, what all algorithms share, what each adds, and presets."""
