"""A checkpoint with a smaller vocabulary than the suite's own, made on demand."""

from __future__ import annotations

import atexit
import json
import math
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_LENGTH = 8
"""Number of bytes of the header length of a safetensors file, little-endian."""


@cache
def with_vocabulary(model: Path, vocab_size: int) -> Path:
    """A copy of a model directory with a vocabulary of the first `vocab_size` tokens; it is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tgi-conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    for path in model.glob("*.safetensors"):
        (folder / path.name).write_bytes(_cut(path.read_bytes(), config["vocab_size"], vocab_size))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": vocab_size}), encoding="utf-8")
    return folder


def _cut(content: bytes, before: int, after: int) -> bytes:
    """A safetensors file without the last rows of tensors that have a row per token."""
    start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    header: dict[str, Any] = json.loads(content[_LENGTH:start])
    data = bytearray()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        shape = entry["shape"]
        if shape[0] == before:
            last -= (last - first) // math.prod(shape) * math.prod(shape[1:]) * (before - after)
            entry["shape"] = [after, *shape[1:]]
        entry["data_offsets"] = [len(data), len(data) + last - first]
        data += content[start + first : start + last]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text + bytes(data)
