"""The packages for accelerators, on a machine that has none."""
