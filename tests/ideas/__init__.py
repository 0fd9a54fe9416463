"""Researchers' ideas, each in a file of under 30 lines, without a copy of purerl's code."""
