"""The parts of `bench/speculation.py`."""
