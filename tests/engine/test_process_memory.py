"""Memory that a process gives back."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import re
from pathlib import Path
import torch
from tgi_core.process_memory import forget_code

def resident():
    found = re.search(r" r-xp [^\\n]*libtorch_cpu.so\\n(?:.*\\n)*?Rss: +([0-9]+)", Path("/proc/self/smaps").read_text())
    return int(found[1])

first = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).softmax(-1)
before = resident()
forget_code()
after = resident()
again = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).softmax(-1)
assert torch.equal(first, again)
print(before, after, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_code_is_forgotten_and_comes_back() -> None:
    """What torch needs again is there, and the rest is not."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after, again = map(int, done.stdout.split())
    assert after < before / 4 and after < again < before
