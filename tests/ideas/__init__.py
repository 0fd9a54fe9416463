"""What researchers add from outside, each in a file of under 30 lines, and no copy of ours."""
