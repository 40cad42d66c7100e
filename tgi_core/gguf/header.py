"""The header of a GGUF file, checked before anything in it is used.

Format: magic, version, counts; metadata as (key, type, value); tensors as (name, sizes, type, offset); padding; data. All little-endian.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError

MAGIC = b"GGUF"

BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Name, elements and bytes of a block, by the file's number of the type."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_ITEMS = 1 << 24
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor: bytes start…end-1 of the file. `shape` is in torch's order, the last dimension contiguous."""

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file's metadata and tensors."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value of the metadata, of a kind. Raises StartupError if it is of another, or missing without a default."""
        value = self.metadata.get(key, default)
        if value is None or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            what = "missing" if key not in self.metadata else f"{str(value)[:60]!r}"
            raise StartupError(f"{self.path}: its metadata is not of a model: {key} is {what}")
        return value

    def floats(self, name: str) -> list[float]:
        """The values of a small F32 tensor. Raises StartupError."""
        tensor = self.tensors[name]
        if tensor.type != "F32":
            raise StartupError(f"{self.path}: tensor {name!r} is {tensor.type}, not F32")
        with self.path.open("rb") as stream:
            stream.seek(tensor.start)
            raw = stream.read(tensor.end - tensor.start)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def read_gguf(path: Path) -> GgufFile:
    """Read and check a file's header. Raises StartupError that names the file, and the key or tensor."""
    try:
        with path.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise StartupError(f"{path}: not a GGUF file")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).file()
    except (OSError, ValueError) as error:
        raise StartupError(f"{path}: cannot be read: {str(error)[:200]}") from error


class _Reader:
    """A cursor in the header."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, len(MAGIC)

    def file(self) -> GgufFile:
        """The whole header."""
        version = self._one("I")
        if version not in (2, 3):
            raise self._damaged(f"version {version}; supported are 2 and 3")
        num_tensors, num_keys = self._one("Q"), self._one("Q")
        if num_tensors * 24 + num_keys * 13 > len(self.data):
            raise self._damaged(f"{num_tensors} tensors and {num_keys} keys in {len(self.data)} bytes")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"key {key[:60]!r} twice")
            metadata[key] = self._value(self._one("I"), key)
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment % 8:
            raise self._damaged(f"general.alignment {str(alignment)[:60]}")
        return GgufFile(self.path, metadata, self._placed(described, -(-self.at // alignment) * alignment, alignment))

    def _placed(self, described: list[tuple[str, int, tuple[int, ...], int]], base: int, alignment: int) -> dict[str, GgufTensor]:
        """Tensors with their places, which neither overlap nor leave the file."""
        found: dict[str, GgufTensor] = {}
        end = base
        for name, number, shape, offset in sorted(described, key=lambda each: each[3]):
            kind, elements, size = BLOCKS[number]
            start = base + offset
            fault = "twice" if name in found else "unaligned" if offset % alignment else ""
            fault = fault or (
                "overlapping another" if start < end else "leaving a gap before it" if start >= end + alignment else ""
            )
            end = start + math.prod(shape) // elements * size
            if fault or end > len(self.data):
                raise self._damaged(f"tensor {name[:80]!r} {fault or f'ending at byte {end} of {len(self.data)}'}")
            found[name] = GgufTensor(name, kind, shape, start, end)
        return found

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        dimensions = self._one("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name[:80]!r} of {dimensions} dimensions")
        shape = tuple(reversed(self._numbers("Q", dimensions)))
        number, offset = self._one("I"), self._one("Q")
        if number not in BLOCKS:
            known = ", ".join(kind for kind, _, _ in BLOCKS.values())
            raise StartupError(
                f"{self.path}: tensor {name[:80]!r} is of type {number}, which is not supported; supported are {known}"
            )
        if not all(shape) or math.prod(shape) >= 1 << 48 or shape[-1] % BLOCKS[number][1] or offset >= 1 << 62:
            raise self._damaged(f"tensor {name[:80]!r} of {BLOCKS[number][0]} {list(shape)}")
        return name, number, shape, offset

    def _value(self, kind: int, key: str) -> Any:
        if kind in _NUMBERS:
            return self._one(_NUMBERS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise self._damaged(f"key {key[:60]!r} of type {kind}")
        item, count = self._one("I"), self._one("Q")
        if item in _NUMBERS:
            return list(self._numbers(_NUMBERS[item], count))
        if item != _STRING or count > _MAX_ITEMS:
            raise self._damaged(f"key {key[:60]!r} of {count} items of type {item}")
        return [self._string() for _ in range(count)]

    def _string(self) -> str:
        raw = self._bytes(self._one("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"text {raw[:40]!r} that is not UTF-8") from error

    def _one(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        if count > _MAX_ITEMS:
            raise self._damaged(f"{count} items in a list")
        layout = struct.Struct(f"<{count}{code}")
        return layout.unpack(self._bytes(layout.size))

    def _bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise StartupError(
                f"{self.path}: truncated, or damaged: its header needs {count} bytes at byte {self.at} of {len(self.data)}"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def _damaged(self, what: str) -> StartupError:
        return StartupError(f"{self.path}: damaged: its header says {what}")
