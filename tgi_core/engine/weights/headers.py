"""The headers of safetensors files, checked before anything in them is used.

Format: 8 bytes little-endian length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, then the data. Source:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_core.backend import InvalidModel

MAX_HEADER_BYTES = 100_000_000

ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of an element, by the dtype names of the files."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's place: bytes start…end-1 of the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return self.end - self.start


def read_header(file: Path) -> dict[str, TensorEntry]:
    """All tensors of a file, by name. Raises InvalidModel naming file and tensor."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise InvalidModel(f"{file}: truncated, or not a safetensors file: header of {length} bytes in a file of {size}")
            raw = stream.read(length)
    except OSError as error:
        raise InvalidModel(f"{file}: cannot be read: {error.strerror}") from error
    entries = [_entry(file, name, value, 8 + length, size) for name, value in _parse(file, raw).items() if name != "__metadata__"]
    _check_overlap(file, entries, 8 + length, size)
    return {entry.name: entry for entry in entries}


class _Twice(ValueError):
    """A JSON object has a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise _Twice(name)
    return found


def _parse(file: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except _Twice as error:
        raise InvalidModel(f"{file}: damaged: its header names {str(error)[:200]!r} twice") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{file}: damaged: its header is not JSON") from error
    if not isinstance(header, dict):
        raise InvalidModel(f"{file}: damaged: its header is not a JSON object")
    return header


def _entry(file: Path, name: str, value: object, base: int, size: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise InvalidModel(f"{file}: damaged: tensor {name!r} has no description")
    dtype, shape, offsets = value.get("dtype"), _sizes(value.get("shape")), _sizes(value.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise InvalidModel(f"{file}: tensor {name!r} has dtype {str(dtype)[:40]!r}, which is not supported")
    if shape is None or offsets is None or len(offsets) != 2:
        raise InvalidModel(f"{file}: damaged: shape or offsets of tensor {name!r} are not sizes")
    start, end = base + offsets[0], base + offsets[1]
    if end > size:
        raise InvalidModel(f"{file}: truncated: tensor {name!r} ends at byte {end} of {size}")
    if end - start != math.prod(shape) * ITEM_BYTES[dtype]:
        raise InvalidModel(f"{file}: damaged: tensor {name!r} of {dtype} {list(shape)} has {end - start} bytes")
    return TensorEntry(file, name, dtype, tuple(shape), start, end)


def _sizes(value: object) -> list[int] | None:
    """The list if it holds sizes, else None."""
    good = isinstance(value, list) and all(type(number) is int and 0 <= number < 2**62 for number in value)
    return list(value) if good and isinstance(value, list) else None


def _check_overlap(file: Path, entries: list[TensorEntry], base: int, size: int) -> None:
    """Tensors are contiguous and fill the file."""
    at = base
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start != at:
            fault = "overlaps another" if entry.start < at else "leaves a gap before it"
            raise InvalidModel(f"{file}: damaged: tensor {entry.name!r} {fault}")
        at = entry.end
    if at != size:
        raise InvalidModel(f"{file}: damaged: {size - at} bytes after the last tensor")
