"""The CPU backend keeps the contract: package and protocol here, the rest by `make conformance`."""

from __future__ import annotations

import os

from tgi_conformance import conformance_tests

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models this small gain nothing from threads

test_conformance = conformance_tests("cpu", "L1", effort=0.2)
