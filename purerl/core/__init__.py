"""The ground: types, errors, random keys, the update counter, metrics and reductions. It imports nothing else of purerl."""
