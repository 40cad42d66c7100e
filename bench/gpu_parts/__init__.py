"""The sections of bench/gpu.py, each run in a separate process."""
