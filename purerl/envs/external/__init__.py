"""External (Python) environments: gymnasium's, which the compiled program calls back to."""
