"""What researchers add from outside, each in a file of its own: under 30 lines, imports included, and no copy of ours."""
