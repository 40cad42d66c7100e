"""The sections of bench/gpu.py, each run in a process of its own."""
