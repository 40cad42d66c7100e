"""The device: a model, its cache of blocks, and the logits of a step. This is the file to replace.

The toy here mixes a state of 64 bits per position from two states before it, and so depends on its cache as attention
does: a block that is written too early or read too late shows in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tgi_core.backend import Memory, Unsupported
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.backend.reference import mix, toy_logits
from tgi_core.backend.sampling import Logits
from tgi_core.model_files import read_json, text_config


class Device:
    """One model on one device. Raises what `errors.TABLE` translates, and errors of the contract."""

    def __init__(self, model: Path, dtype: str) -> None:
        if dtype not in ("auto", "float32"):
            raise Unsupported(f"dtype {dtype}: this device runs float32")
        config = text_config(read_json(model / "config.json"))
        self.vocab_size: int = config["vocab_size"]
        self.max_positions: int = config["max_position_embeddings"]
        self._slots: list[int] = []
        self._block_size = 1
        # Replace: load the weights.

    def reserve(self, num_blocks: int, block_size: int) -> None:
        """Make the cache and compile what will run; nothing is reserved or compiled later."""
        # Replace: allocate keys and values of all layers. Block ids are 1…num_blocks, so that 0 may be padding.
        self._slots, self._block_size = [0] * ((num_blocks + 1) * block_size), block_size

    def run(self, row_inputs: Sequence[RowInput]) -> list[Logits]:
        """Compute each row's positions start…start + take - 1 and write its blocks. Return logits after the last."""
        # Replace: one forward pass over all rows. `row_input.row.tables[0]` are the ids of the row's blocks, in order.
        # The toy has logits for a few likely tokens; a masked row gets one for every token, as a model does.
        everything = range(self.vocab_size)
        return [
            toy_logits(self._forward(row_input), self.vocab_size, everything if row_input.row.request.masked else ())
            for row_input in row_inputs
        ]

    def memory(self) -> tuple[Memory, ...]:
        """Memory in use, by name."""
        return (Memory("kv cache", 8 * len(self._slots)),)

    def close(self) -> None:
        """Release everything."""
        self._slots = []

    def _forward(self, row_input: RowInput) -> int:
        table, state = row_input.row.tables[0], 0
        for position in range(row_input.start, row_input.start + row_input.take):
            before = self._slots[self._slot(table, position - 1)] if position else 0
            far = self._slots[self._slot(table, position // 2)] if position else 0
            state = mix(before ^ mix(far ^ row_input.row.tokens[position]))
            self._slots[self._slot(table, position)] = state
        return state

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size
