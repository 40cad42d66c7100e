"""Measures which kernels, and which layout of weights, are the fastest on this processor.

A processor's newest instructions are not always its fastest: on Intel's Sapphire Rapids, VDPBF16PS takes twice as long as multiply-adds
of widened numbers, and decoding weights of twelve bits takes longer than reading four more bits.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator, Mapping

import torch

from tgi_backend_cpu.interface import Layout, Linear
from tgi_backend_cpu.kernels import Arena, Kernels, Memory
from tgi_backend_cpu.limits import memory_limit
from tgi_backend_cpu.packing import pack
from tgi_backend_cpu.picks import Pick
from tgi_core.engine.quantization.weight import Dense

COLUMNS, DEPTH = 3072, 1024
LOADS = ((1, 32), (8, 16), (32, 8), (256, 2))
"""Numbers of rows, and of weights of 6 MiB that they are multiplied with in turn: small batches must read from memory, not from a
cache."""
REPEATS = 3
MARGIN = 0.95
"""Another candidate must take at most this part of the default's time, so that noise does not displace it."""

_NAMES = {True: "12-bit weights", False: "plain weights"}


def fastest(kernels: Mapping[str, Kernels], default: str) -> Pick:
    """The pick among variants, by name, and layouts: least time over all loads, as a geometric mean. `default` with 12-bit weights stays
    unless another is clearly faster."""
    times = {(name, bf12): _times(own, bf12) for name, own in kernels.items() for bf12 in (True, False)}
    reference = times[default, True]
    shares = {
        candidate: math.exp(sum(math.log(t / r) for t, r in zip(found, reference, strict=True)) / len(found))
        for candidate, found in times.items()
    }
    best = min(shares, key=lambda candidate: shares[candidate])
    if shares[best] > MARGIN:
        best = (default, True)
    others = ", ".join(f"{name} with {_NAMES[bf12]} {share:.2f}" for (name, bf12), share in shares.items())
    return Pick(*best, f"measured for {', '.join(str(rows) for rows, _ in LOADS)} rows, relative time: {others}")


def _times(kernels: Kernels, bf12: bool) -> list[float]:
    """Seconds of each load, the minimum of a few repeats: other processes can only slow one down."""
    before, kernels.bf12 = kernels.bf12, bf12
    try:
        with _Weights(kernels) as weights:
            return [min(_timed(kernels, weights, rows, count) for _ in range(REPEATS + 1)) for rows, count in LOADS]
    finally:
        kernels.bf12 = before


def _timed(kernels: Kernels, weights: _Weights, rows: int, count: int) -> float:
    x, y = torch.ones(rows, DEPTH, dtype=torch.bfloat16), torch.empty(rows, COLUMNS, dtype=torch.bfloat16)
    start = time.perf_counter()
    for linear in weights.first(count):
        kernels.call.tgi_linear(kernels.pool, 1, ctypes.byref(linear), x.data_ptr(), y.data_ptr(), rows)
    return time.perf_counter() - start


class _Weights:
    """Copies of a packed weight, as many as fit in a small part of the memory."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __enter__(self) -> _Weights:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(COLUMNS, DEPTH, generator=generator).mul_(0.02).bfloat16()
        arena = Arena(self._kernels)
        self._packed = pack(self._kernels, arena, [Dense.of(weight)])
        self._size = -(-arena.num_bytes // 64) * 64
        self._count = max(1, min(max(count for _, count in LOADS), memory_limit().available // 8 // self._size))
        self._memory = Memory(self._kernels, self._size * self._count)
        for place in range(self._count):
            ctypes.memmove(self._memory.address + place * self._size, self._packed.data, arena.num_bytes)
        return self

    def __exit__(self, *_: object) -> None:
        del self._memory

    def first(self, count: int) -> Iterator[Linear]:
        """This many weights, repeated if not all fit in memory."""
        for place in range(count):
            data = self._memory.address + place % self._count * self._size
            yield Linear(data, None, Layout(self._packed.layout), self._packed.columns, self._packed.steps)
