"""The form in which an image crosses the seam to a backend: what the model's processor makes of it, as a safetensors file in memory.

The prompt has the model's placeholder token once for each embedding that the vision tower makes of the image; the file's metadata says
how many these are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

_TOKENS = "tokens"
_LONGEST_HEADER = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """One image: the tensors that the model's `forward` takes for it, by name, and the number of its placeholder tokens."""

    tokens: int
    tensors: Mapping[str, np.ndarray]

    def to_bytes(self) -> bytes:
        """Encode as an item of `Request.media`."""
        encoded: bytes = save(dict(self.tensors), metadata={_TOKENS: str(self.tokens)})
        return encoded

    @classmethod
    def from_bytes(cls, data: bytes) -> ImageFeatures:
        """Decode an item of `Request.media`. Raises ValueError."""
        try:
            return cls(num_tokens(data), load(data))
        except SafetensorError as error:
            raise ValueError(f"an image's features are damaged: {error}") from error


def num_tokens(data: bytes) -> int:
    """Number of placeholder tokens of an item of `Request.media`; reads only its header. Raises ValueError."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _LONGEST_HEADER):
        raise ValueError("an image's features are not a safetensors file")
    try:
        count = int(json.loads(data[8 : 8 + length])["__metadata__"][_TOKENS])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("an image's features don't say how many tokens it has") from None
    if count < 1:
        raise ValueError(f"an image's features claim {count} tokens")
    return count
