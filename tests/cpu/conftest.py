"""Native kernels of every instruction set that this processor runs."""

from __future__ import annotations

import os

import pytest
import torch
from tgi_backend_cpu.building import EMULATED, VARIANTS, CannotBuild, Variant, compiler, cpu_flags
from tgi_backend_cpu.kernels import Kernels, load

# Models this small gain nothing from threads, and threads that wait for each other on a busy machine lose much.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

_opened: dict[str, Kernels] = {}


def need(*variants: Variant) -> None:
    """Skip where the processor runs none of them, or there is neither a library nor a compiler. A build that fails is a failure."""
    fitting = next((variant for variant in variants if variant.cpu_flags <= cpu_flags()), None)
    if fitting is None:
        pytest.skip(f"the processor does not run {' or '.join(variant.name for variant in variants)}")
    try:
        load(fitting)
    except CannotBuild:
        if compiler() is not None:
            raise
        pytest.skip("no compiler")


def kernels_of(variant: Variant) -> Kernels:
    """A variant with three threads, one for the whole test run."""
    need(variant)
    if variant.name not in _opened:
        _opened[variant.name] = Kernels(load(variant)[0], 3)
    return _opened[variant.name]


@pytest.fixture(params=[*(each for each in VARIANTS if each.name != "avx2-vnni"), EMULATED], ids=lambda variant: variant.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each variant in turn, but for one that differs from `avx2` in exact products of bytes alone: `test_int8.py` compares them."""
    return kernels_of(request.param)


@pytest.fixture
def rounds_weights(request: pytest.FixtureRequest) -> bool:
    """Whether the variant has a tile unit, for which weights of codes in several groups are rounded to bfloat16."""
    return request.node.callspec.params["kernels"].name.startswith("amx")
