"""The cache of an encoder-decoder: a lane per row, with the decoder's keys and values and those of the encoder's output.

The rows of a step are moved to the first lanes, so that a step computes on views of the cache and copies none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LaneShape:
    """A layer's heads, and the widths of its keys and values."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Elements per position."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class LayerShapes:
    """The cache of a decoder layer per position of its own, and per position of the encoder."""

    own: LaneShape
    cross: LaneShape


@dataclass(frozen=True, slots=True)
class KeysValues:
    """Keys and values [lanes, heads, positions, dim] of a layer."""

    keys: Tensor
    values: Tensor

    @classmethod
    def zeros(cls, lanes: int, shape: LaneShape, positions: int, dtype: torch.dtype, device: torch.device) -> KeysValues:
        """The tensors of all lanes."""
        sizes = ((lanes, shape.heads, positions, width) for width in (shape.key_dim, shape.value_dim))
        return cls(*(torch.zeros(size, dtype=dtype, device=device) for size in sizes))

    def view(self, lanes: slice, positions: int) -> KeysValues:
        """A part of it, without a copy."""
        return KeysValues(self.keys[lanes, :, :positions], self.values[lanes, :, :positions])


@dataclass(slots=True)
class Used:
    """Positions of a lane that may differ from zero: of the prompt, and of the decoder."""

    prompt: int = 0
    answer: int = 0


class Lanes:
    """`num_lanes` rows of up to `prompt` positions of the encoder and `answer` positions of the decoder. Positions past those that a row
    has written are zero: a masked position has weight zero, but zero times what an earlier row left there need not be zero."""

    def __init__(
        self, layers: Sequence[LayerShapes], num_lanes: int, prompt: int, answer: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.own = [KeysValues.zeros(num_lanes, each.own, answer, dtype, device) for each in layers]
        self.cross = [KeysValues.zeros(num_lanes, each.cross, prompt, dtype, device) for each in layers]
        self.prompt, self.answer = prompt, answer
        self._blocks = list(range(1, num_lanes + 1))
        self._lanes = {block: lane for lane, block in enumerate(self._blocks)}
        self._used = [Used() for _ in self._blocks]

    def __getitem__(self, block: int) -> int:
        """The lane of a block's row."""
        return self._lanes[block]

    def begin(self, block: int) -> None:
        """Empty the lane of a block that a new row was given."""
        lane = self._lanes[block]
        for tensor, used in self._tensors(self._used[lane]):
            tensor[lane, :, :used].zero_()
        self._used[lane] = Used()

    def written(self, block: int, prompt: int, answer: int) -> None:
        """Note how many positions of a row are written."""
        self._used[self._lanes[block]] = Used(prompt, answer)

    def prompt_len(self, block: int) -> int:
        """Number of the encoder's positions of a row."""
        return self._used[self._lanes[block]].prompt

    def arrange(self, blocks: Sequence[int], first: int = 0) -> None:
        """Move the rows of these blocks to the lanes from `first` on, in any order."""
        wanted = range(first, first + len(blocks))
        empty = sorted(set(wanted) - {self._lanes[block] for block in blocks}, reverse=True)
        for block in blocks:
            if self._lanes[block] not in wanted:
                self._swap(self._lanes[block], empty.pop())

    def _swap(self, one: int, other: int) -> None:
        """Exchange two lanes."""
        most = Used(max(self._used[one].prompt, self._used[other].prompt), max(self._used[one].answer, self._used[other].answer))
        for tensor, used in self._tensors(most):
            kept = tensor[one, :, :used].clone()
            tensor[one, :, :used] = tensor[other, :, :used]
            tensor[other, :, :used] = kept
        self._used[one], self._used[other] = self._used[other], self._used[one]
        self._blocks[one], self._blocks[other] = self._blocks[other], self._blocks[one]
        self._lanes[self._blocks[one]], self._lanes[self._blocks[other]] = one, other

    def _tensors(self, used: Used) -> Iterator[tuple[Tensor, int]]:
        """All tensors, each with the number of its positions in use."""
        for layers, positions in ((self.own, used.answer), (self.cross, used.prompt)):
            for layer in layers:
                yield layer.keys, positions
                yield layer.values, positions
