"""A made-up device with fixed slots: it runs programs of the shapes that were compiled, and nothing else.

It stands for chips whose compiler wants every shape beforehand: the cache is [slots, length], a step is [rows, width] tokens,
and a shape that was not compiled is an error, never a compile in the middle of traffic. The model is the suite's toy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import CompileFailed, Memory, Unsupported
from tgi_core.backend.reference import mix, toy_logits
from tgi_core.backend.sampling import Logits
from tgi_core.model_files import read_json, text_config

PADDING = -1
"""A token, or a slot, that is not there."""

Shape = tuple[int, int]
"""Rows and width, in tokens."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a program takes: tokens [rows][width], padded at the end; per row its slot and its first token's position."""

    tokens: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """What must have been compiled."""
        return len(self.tokens), len(self.tokens[0])


class Device:
    """One toy on one device. Raises CompileFailed for a shape that was not compiled."""

    def __init__(self, model: Path, dtype: str) -> None:
        if dtype not in ("auto", "float32"):
            raise Unsupported(f"dtype {dtype}: this device runs float32")
        config = text_config(read_json(model / "config.json"))
        self.vocab_size: int = config["vocab_size"]
        self.max_positions: int = config["max_position_embeddings"]
        self.programs: frozenset[Shape] = frozenset()
        self.compiles = 0
        self._cache: list[list[int]] = []

    def compile(self, shapes: Sequence[Shape], slots: int, length: int) -> None:
        """Make the cache and all programs; slots are 1…slots."""
        self.programs, self.compiles = frozenset(shapes), self.compiles + len(shapes)
        self._cache = [[0] * length for _ in range(slots + 1)]

    def run(self, call: Call) -> list[Logits]:
        """One program; logits after the last token of each row, of no use for a row of padding."""
        if call.shape not in self.programs:
            raise CompileFailed(f"no program of shape {call.shape}; there are {sorted(self.programs)}")
        return [
            toy_logits(self._row(tokens, slot, start), self.vocab_size)
            for tokens, slot, start in zip(call.tokens, call.slots, call.starts, strict=True)
        ]

    def memory(self) -> tuple[Memory, ...]:
        """What is held, by name."""
        return (Memory("slots", sum(8 * len(slot) for slot in self._cache)),)

    def close(self) -> None:
        """Give everything back."""
        self._cache, self.programs = [], frozenset()

    def _row(self, tokens: Sequence[int], slot: int, start: int) -> int:
        """The toy's state after the last token, mixed from the state before it and one far back, as attention would be."""
        state = 0
        for position, token in enumerate(tokens, start):
            if token == PADDING:
                break
            cache = self._cache[slot]
            before, far = (cache[position - 1], cache[position // 2]) if position else (0, 0)
            state = cache[position] = mix(before ^ mix(far ^ token))
        return state
