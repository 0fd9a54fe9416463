"""Types, errors, random keys, the update counter, metrics and reductions. This package imports no other package of purerl."""
