"""Tensors as views of memory-mapped files, or where they lie in one."""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tgi_core.engine.weights.headers import TensorEntry

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's types for the names in `headers.ITEM_BYTES`."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where a tensor begins in a file, in bytes. The file stays open as long as this object lives."""

    file: MappedFile
    start: int


class MappedFile:
    """A memory-mapped file; pages are read on access."""

    def __init__(self, file: Path) -> None:
        self.descriptor = os.open(file, os.O_RDONLY)
        """That of the open file, for pread(2)."""
        weakref.finalize(self, os.close, self.descriptor)
        self._map = mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ)

    def view(self, entry: TensorEntry) -> Tensor:
        """The tensor as a read-only view of the file, valid while this object lives; a copy if it is misaligned."""
        if entry.num_bytes == 0:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        with warnings.catch_warnings():
            # torch warns that the buffer is not writable; views are never written to.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(self._map, dtype=torch.uint8, count=entry.num_bytes, offset=entry.start)
        dtype = DTYPES[entry.dtype]
        if flat.data_ptr() % dtype.itemsize:
            flat = flat.clone()
        return flat.view(dtype).view(entry.shape)

    def forget(self) -> None:
        """Drop the pages that were read; views read theirs again on access."""
        self._map.madvise(mmap.MADV_DONTNEED)
