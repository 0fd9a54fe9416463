"""Logging during training: terminal output, and recorders for files and services."""
