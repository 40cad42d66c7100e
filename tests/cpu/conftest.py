"""Native kernels of every instruction set that this processor runs."""

from __future__ import annotations

import os

import pytest
import torch
from tgi_backend_cpu.building import VARIANTS, Variant
from tgi_backend_cpu.kernels import Kernels, cpu_flags, load

# Models this small gain nothing from threads, and threads that wait for each other on a busy machine lose much.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

_opened: dict[str, Kernels] = {}


def kernels_of(variant: Variant) -> Kernels:
    """A variant with three threads, one for the whole test run; skips where the processor or a compiler is lacking."""
    if not variant.cpu_flags <= cpu_flags():
        pytest.skip(f"the processor does not run {variant.name}")
    if variant.name not in _opened:
        _opened[variant.name] = Kernels(load(variant)[0], 3)
    return _opened[variant.name]


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each variant in turn."""
    return kernels_of(request.param)
