"""What loading a model leaves in the C library's heap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tiny_models import save_tiny

LEFT = """
import ctypes, sys
from tests.engine.tiny_models import silent
from tgi_core.backend import OpenOptions
from tgi_core.backend.registry import find

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

session = find("cpu").open(OpenOptions(sys.argv[1], dtype="float32"), silent)
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
print(libc.mallinfo2().fordblks)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_loading_leaves_no_free_memory_behind(tmp_path: Path) -> None:
    """glibc would keep what loading frees, and serve large temporaries of steps from there, each from another place: steps would take more
    memory than is planned for them."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "vocab_size": 4096}
    model = save_tiny("gemma2", tmp_path / "model", **sizes)
    weights = (model / "model.safetensors").stat().st_size
    done = subprocess.run([sys.executable, "-c", LEFT, str(model)], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < weights / 8
