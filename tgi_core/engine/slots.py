"""Steps over a model that is compiled for fixed slots: a slot is a block, which holds a whole row.

Prompts are padded to a slot's length and run one at a time. A step of decode rows runs all slots, each at a position of its own, so that
the model has one program for it: an idle slot is written where its row would write next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

import tgi_core.backend as api
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.sync_session import SyncSession

DEFAULT_ROWS, DEFAULT_LENGTH = 8, 4096
"""Default numbers of slots, and of positions of a slot."""


class SlotModel(Protocol):
    """A loaded model."""

    def __call__(self, ids: Tensor, positions: Tensor, slots: Sequence[int]) -> Tensor:
        """Logits float32 [rows, vocabulary] after the tokens `ids` at `positions`, int32 [rows, tokens] each, of these slots from 0 on.

        One row with as many tokens as a slot has positions starts its slot over; the logits are those after its largest position.
        Otherwise there is one token per slot.
        """


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """Bytes on the device: of one position of a slot's cache, and `free` for all slots."""

    position: int
    free: int


Load = Callable[[int, int, api.Progress], tuple[SlotModel, int]]
"""Loads the model for this many slots of this many positions. Returns it and the number of compiled programs."""


class SlotRunner:
    """Runs steps on a model with slots; see `tgi_core.engine.runner.Runner`. `compiled` are slots and positions of a model that is compiled
    already."""

    cache_dtype = "auto"
    features: frozenset[api.Feature] = frozenset()
    block_sizes: tuple[int, ...] = ()

    def __init__(
        self, load: Load, shape: ModelShape, memory: SlotMemory, stack: str, compiled: tuple[int, int] | None = None
    ) -> None:
        """`stack` names the software that runs the model."""
        self.kernels = (api.Kernel("step", stack, "fixed slots; every step of decode rows runs all of them"),)
        self.shape = shape
        self._load, self._memory, self._compiled = load, memory, compiled
        self._model: SlotModel | None = None
        self._length = 0
        self._filled: list[int] = []
        """Positions of each slot that are written."""

    def reserve(self, plan: api.WarmupPlan, progress: api.Progress = lambda what, done, total, unit: None) -> api.Capacity:
        """Compile and load the model. Raises OutOfMemory, Unsupported, and what `Load` raises."""
        slots, length = self.planned(plan)
        rows = min(slots, plan.max_rows or slots)
        self._model, compiles = self._load(slots, length, progress)
        self._length, self._filled = length, [0] * slots
        cache = slots * length * self._memory.position
        return api.Capacity(
            groups=(api.CacheGroup(api.CacheKind.FULL, length, slots),),
            max_rows=rows,
            max_row_tokens=min(length, plan.max_row_tokens or length),
            max_step_tokens=max(plan.max_step_tokens or 0, length + rows),
            max_prefill_rows=1,
            memory=(
                *self.shape.weights,
                api.Memory("kv cache", cache),
                api.Memory("reserve", max(0, self._memory.free - cache)),
            ),
            compiles=compiles,
            takes=(length,),
        )

    def planned(self, plan: api.WarmupPlan) -> tuple[int, int]:
        """Slots and their positions: those of a compiled model if they suffice, else the plan's. Raises OutOfMemory."""
        asked = min(plan.max_rows or plan.num_blocks or 0, plan.num_blocks or plan.max_rows or 0)
        wanted = max(2, min(plan.max_row_tokens or DEFAULT_LENGTH, self.shape.max_positions))
        if self._compiled is not None:
            slots, length = self._compiled
            return max(slots, asked), max(length, wanted if plan.max_row_tokens else 0)
        each, free = wanted * self._memory.position, self._memory.free
        slots = asked or min(DEFAULT_ROWS, free // each)
        if not slots or slots * each > free:
            raise api.OutOfMemory(
                f"KV cache: {slots or 1} slots of {wanted} tokens need {(slots or 1) * each:,} bytes, and "
                f"{free:,} are free after weights of {self.shape.weight_bytes:,}; "
                "lower --max-batch-size or --max-total-tokens, or use more cores"
            )
        return slots, wanted

    @torch.inference_mode()
    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Prompts one by one, then all rows that take one token together."""
        found: dict[int, Tensor] = {}
        for row_input in row_inputs:
            if row_input.start == 0:
                found[row_input.row.request.id] = self._encode(row_input)
        decoding = [row_input for row_input in row_inputs if row_input.take == 1]
        if decoding:
            logits = self._decode(decoding)
            found |= {row_input.row.request.id: logits[_slot(row_input)] for row_input in decoding}
        rows = [found[row_input.row.request.id] for row_input in row_inputs if row_input.yields]
        return StepLogits(torch.stack(rows) if rows else torch.zeros(0, self.shape.vocab_size))

    def release(self) -> None:
        """Free the model."""
        self._model = None
        self._filled = []

    def _encode(self, row_input: RowInput) -> Tensor:
        """Logits [vocabulary] after a whole prompt, which fills its slot from the beginning.

        A prompt of one token runs as a decode row. It is encoded nevertheless, and the result is dropped: a NaN left by the slot's
        previous row would reach it in spite of the mask.
        """
        ids, positions = (torch.zeros(1, self._length, dtype=torch.int32) for _ in range(2))
        ids[0, : row_input.take] = torch.tensor(row_input.row.tokens[: row_input.take])
        count = max(2, row_input.take)  # padding is at position 0, so that the last token alone has the largest one
        positions[0, :count] = torch.arange(count)
        logits = self._loaded(ids, positions, [_slot(row_input)])
        self._filled[_slot(row_input)] = row_input.take if row_input.take > 1 else 0
        return logits[0]

    def _decode(self, row_inputs: Sequence[RowInput]) -> Tensor:
        """Logits [slots, vocabulary] after the next token of each slot."""
        ids = torch.zeros(len(self._filled), 1, dtype=torch.int32)
        for row_input in row_inputs:
            ids[_slot(row_input), 0] = row_input.row.tokens[row_input.start]
            self._filled[_slot(row_input)] = row_input.start
        positions = torch.tensor(self._filled, dtype=torch.int32).clamp_max(self._length - 1).unsqueeze(1)
        logits = self._loaded(ids, positions, range(len(self._filled)))
        for row_input in row_inputs:
            self._filled[_slot(row_input)] = row_input.start + 1
        return logits

    @property
    def _loaded(self) -> SlotModel:
        if self._model is None:
            raise RuntimeError("run before reserve")
        return self._model


def slot_session(runner: SlotRunner, masks: api.MaskSource | None, kernels: tuple[api.Kernel, ...]) -> SyncSession:
    """A session over slots. A prompt's program returns the logits after its last token only."""
    session = SyncSession(runner, runner.shape, masks, kernels=kernels, reserve=runner.reserve)
    session.declare(features=session.capabilities().features - {api.Feature.PROMPT_LOGPROBS})
    return session


def _slot(row_input: RowInput) -> int:
    return row_input.row.tables[0][0] - 1
