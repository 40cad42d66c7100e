"""Peak memory bandwidth and compute of this machine, as upper bounds for engines."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F


def best_seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Shortest of a few runs, after a warm-up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def read_bandwidth() -> float:
    """Read bandwidth of all threads together, in bytes per second, over a 512 MB buffer."""
    data = torch.ones(2**27, dtype=torch.float32)
    return data.numel() * data.itemsize / best_seconds(data.sum)


def gemm_rate() -> float:
    """Operations per second of a bfloat16 matrix product [512, 2048] · [2048, 2048]."""
    left, right = torch.randn(512, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
    return 2 * 512 * 2048 * 2048 / best_seconds(lambda: F.linear(left, right))
