"""Research ideas, each in a file of fewer than 30 lines of code, without a copy of purerl's code."""
