"""The scheduler's state machine at its full size: 500 runs of 100 steps."""

from __future__ import annotations

import os
import sys

import pytest

if __name__ == "__main__":
    os.environ["HYPOTHESIS_PROFILE"] = "long"
    sys.exit(pytest.main(["tests/scheduler/test_machine.py", "-o", "timeout=3600"]))
