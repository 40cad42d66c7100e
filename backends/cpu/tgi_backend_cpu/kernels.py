"""The native kernels of this process: which variant was chosen and why, its threads and its memory."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from tgi_backend_cpu.building import CHOICE, CannotBuild, Variant, best_variant, library, opened
from tgi_backend_cpu.interface import INTERFACE, PARTS, declare

_log = logging.getLogger("tgi_backend_cpu")

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, for the log and `/info`: the variant or `torch`, and the reason."""

    name: str
    reason: str


class Memory:
    """Zeroed memory in huge pages, freed when nothing refers to it."""

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
    """One loaded library and its thread pool."""

    def __init__(self, call: ctypes.CDLL, threads: int) -> None:
        self.call, self.threads = call, threads
        self.pool = ctypes.c_void_p(call.tgi_pool(threads))
        weakref.finalize(self, call.tgi_pool_free, self.pool).atexit = False

    def times(self) -> dict[str, int]:
        """Nanoseconds spent in each part of a step since the start."""
        found = (ctypes.c_uint64 * len(PARTS))()
        self.call.tgi_times(self.pool, found)
        return dict(zip(PARTS, found, strict=True))


def choose(environment: Mapping[str, str] = os.environ) -> tuple[ctypes.CDLL | None, Choice]:
    """The best variant that the processor supports and that can be loaded; None means torch's own operators."""
    try:
        variant = best_variant(environment)
        loaded, origin = load(variant)
    except CannotBuild as error:
        return None, Choice("torch", str(error))
    asked = environment.get(CHOICE, "").strip() == variant.name
    return loaded, Choice(variant.name, f"{'asked for' if asked else 'best variant that this CPU supports'}, {origin}")


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
    return call, origin


def open_kernels(threads: int, fault: str = "") -> tuple[Kernels | None, Choice]:
    """The kernels of this process; the choice is logged. `fault`: why there can be none, if that is known."""
    call, choice = (None, Choice("torch", fault)) if fault else choose()
    _log.info("kernels: %s (%s)", choice.name, choice.reason)
    return (Kernels(call, threads) if call is not None else None), choice
