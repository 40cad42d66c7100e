"""Inputs of a step in one buffer of 32-bit words: filled on the host, copied once, read on the device as views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """The places of inputs by name, and the number of words in all."""

    places: Mapping[str, slice]
    count: int

    @classmethod
    def of(cls, **sizes: int) -> BufferLayout:
        """Inputs of these sizes, one after another."""
        ends = np.cumsum(list(sizes.values())).tolist()
        return cls({name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}, ends[-1])

    def host(self, words: Tensor) -> dict[str, np.ndarray]:
        """Views of host memory, int32, to be filled."""
        whole = words.numpy()
        return {name: whole[place] for name, place in self.places.items()}

    def views(self, words: Tensor) -> dict[str, Tensor]:
        """Views of words on the device, int32."""
        parts = words.split([place.stop - place.start for place in self.places.values()])
        return dict(zip(self.places, parts, strict=True))

    def device(self, words: Tensor) -> dict[str, Tensor]:
        """All inputs as int64, widened in one operation: torch's operators take no other indices."""
        wide = words.to(torch.int64)
        return {name: wide[place] for name, place in self.places.items()}
