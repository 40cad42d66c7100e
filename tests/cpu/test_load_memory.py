"""What a load takes beyond what it keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tgi_backend_cpu.building import VARIANTS

from tests.cpu.conftest import need
from tests.engine.tiny_models import save_tiny

VOCAB, HIDDEN = 1 << 16, 256
LOAD = """
import gc, sys
from pathlib import Path
from tgi_backend_cpu import plugin
from tgi_core.backend import OpenOptions
from tgi_core.engine import load_heap

load_heap.forget_code = lambda: None  # both loads find the libraries' code in memory

def kilobytes(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))

def load(model):
    session = plugin.backend_open(OpenOptions(model, quantize=sys.argv[3], dtype="bfloat16"), lambda *a: None)
    assert any(kernel.name == "table" for kernel in session.capabilities().kernels)
    return session

load(sys.argv[1])
gc.collect()
before = kilobytes("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")
session = load(sys.argv[2])
print(kilobytes("VmHWM:") - before, kilobytes("VmRSS:") - before)
"""


@pytest.mark.parametrize(("quantize", "most"), [("", 2.25), ("int8", 2.3), ("int4", 2.3)])
def test_a_load_takes_little_more_than_its_weights(quantize: str, most: float, tmp_path: Path) -> None:
    """While a large output head is rounded, packed and compared with plain torch, the process never has more than the mapped file, the
    head's numbers or codes, and their panels, beside pieces of them: `most` times the file, which has float32."""
    need(*VARIANTS)
    shape = {"hidden_size": HIDDEN, "tie_word_embeddings": True}
    models = [save_tiny("llama", tmp_path / str(size), vocab_size=size, **shape) for size in (512, VOCAB)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", LOAD, *map(str, models), quantize]
    told = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout
    peak, kept = (1024 * int(number) for number in told.split())
    file = (models[1] / "model.safetensors").stat().st_size
    assert peak <= most * file and kept <= 1.2 * file
