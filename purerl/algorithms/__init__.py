"""Algorithms, one file per paper. `registry` lists the algorithms, and the steps to add another."""
