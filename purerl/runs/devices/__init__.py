"""Devices of a run: runs spread over local devices, environments spread over devices, and jobs of several processes."""
