"""Loaded native kernels, with their threads and their memory."""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache

import torch

from tgi_backend_cpu.building import CannotBuild, Variant, library, opened
from tgi_backend_cpu.interface import INTERFACE, PARTS, declare

DTYPES = (torch.float32, torch.bfloat16)


class Memory:
    """Zeroed memory in huge pages, freed when nothing refers to it any more."""

    def __init__(self, kernels: Kernels, size: int) -> None:
        address = kernels.call.tgi_map(max(1, size))
        if not address:
            raise MemoryError(f"can't allocate memory: {size:,} bytes of address space")
        self.address, self.size = int(address), size
        weakref.finalize(self, kernels.call.tgi_unmap, address, max(1, size))


class Arena:
    """An allocator for packed weights. Untouched pages of its slabs take no memory."""

    SLAB = 256 << 20

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._slabs: list[Memory] = []
        self._used = 0
        self.num_bytes = 0

    def take(self, size: int) -> int:
        """Allocate `size` bytes, aligned to a cache line; their address."""
        size = -(-size // 64) * 64
        if not self._slabs or self._used + size > self._slabs[-1].size:
            self._slabs.append(Memory(self._kernels, max(size, self.SLAB)))
            self._used = 0
        address = self._slabs[-1].address + self._used
        self._used += size
        self.num_bytes += size
        return address

    def give_back(self, size: int) -> None:
        """Return the last `size` bytes of the last allocation."""
        size = size // 64 * 64
        self._used -= size
        self.num_bytes -= size


class Kernels:
    """One loaded library and its thread pool.

    `bf12`: weights are compressed to twelve bits if that is lossless. `int8_rows`: rows that are multiplied by weights of eight bits are
    rounded to eight bits.
    """

    def __init__(self, call: ctypes.CDLL, threads: int, bf12: bool = True, int8_rows: bool = False) -> None:
        self.call, self.threads, self.bf12, self.int8_rows = call, threads, bf12, int8_rows
        self.pool = ctypes.c_void_p(call.tgi_pool(threads))
        weakref.finalize(self, call.tgi_pool_free, self.pool).atexit = False

    def times(self) -> dict[str, int]:
        """Nanoseconds spent in each part of a step since the start."""
        found = (ctypes.c_uint64 * len(PARTS))()
        self.call.tgi_times(self.pool, found)
        return dict(zip(PARTS, found, strict=True))


@cache
def load(variant: Variant) -> tuple[ctypes.CDLL, str]:
    """A variant's library, loaded once per process, and where it came from. Raises CannotBuild."""
    file, origin = library(variant)
    call = opened(file)
    try:
        declare(call)
    except AttributeError as error:
        raise CannotBuild(f"{file.name}: {error}") from error
    if call.tgi_interface() != INTERFACE:
        raise CannotBuild(f"{file.name} has another interface")
    if refused := call.tgi_permit():
        raise CannotBuild(f"the system does not permit {variant.name}: {os.strerror(refused)}")
    return call, origin
