"""Steps over optimum-neuron's two programs and its cache of fixed slots: a slot is a block, which holds a whole row.

Its wrapper gives slots that sit out of a step the first row's token and position, which overwrites what they hold there. So every step of
decode rows runs all slots here, each at a position of its own: a slot that sits out is written where its row would write next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

import tgi_core.backend as api
from tgi_backend_neuron.failures import neuron_errors
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.sync_session import SyncSession

DEFAULT_ROWS, DEFAULT_LENGTH = 8, 4096
"""Slots, and positions of a slot, where nobody says."""

Load = Callable[[int, int, api.Progress], tuple[Any, int]]
"""Loads the model for so many slots of so many positions; the model, and how many programs were compiled."""


class SlotRunner:
    """Runs steps on a model with slots; see `tgi_core.engine.runner.Runner`.

    `row_bytes` is the memory of one position of a slot's cache, `free` that for all slots; `compiled` are slots and positions of a
    model that is compiled already.
    """

    cache_dtype = "auto"
    features: frozenset[api.Feature] = frozenset()
    block_sizes: tuple[int, ...] = ()

    def __init__(
        self, load: Load, shape: ModelShape, row_bytes: int, free: int, version: str, compiled: tuple[int, int] | None = None
    ) -> None:
        self.kernels = (
            api.Kernel("step", f"optimum-neuron {version}", "fixed slots; every step of decode rows runs all of them"),
        )
        self.progress: api.Progress = lambda what, done, total, unit: None
        self._load, self._shape, self._compiled = load, shape, compiled
        self._row_bytes, self._free_bytes = row_bytes, free
        self._model: Any = None
        self._length = 0
        self._filled: list[int] = []
        """Positions of each slot that are written."""

    def reserve(self, plan: api.WarmupPlan) -> api.Capacity:
        """Compile and load the model. Raises OutOfMemory, Unsupported, and what `Load` raises."""
        slots, length = self.planned(plan)
        rows = min(slots, plan.max_rows or slots)
        self._model, compiles = self._load(slots, length, self.progress)
        self._length, self._filled = length, [0] * slots
        cache = slots * length * self._row_bytes
        return api.Capacity(
            groups=(api.CacheGroup(api.CacheKind.FULL, length, slots),),
            max_rows=rows,
            max_row_tokens=min(length, plan.max_row_tokens or length),
            max_step_tokens=max(plan.max_step_tokens or 0, length + rows),
            max_prefill_rows=1,
            memory=(*self._shape.weights, api.Memory("kv cache", cache), api.Memory("reserve", max(0, self._free_bytes - cache))),
            compiles=compiles,
            takes=(length,),
        )

    def planned(self, plan: api.WarmupPlan) -> tuple[int, int]:
        """Slots and their positions: those of a compiled model if they suffice, else the plan's. Raises OutOfMemory."""
        asked = min(plan.max_rows or plan.num_blocks or 0, plan.num_blocks or plan.max_rows or 0)
        wanted = max(2, min(plan.max_row_tokens or DEFAULT_LENGTH, self._shape.max_positions))
        if self._compiled is not None:
            slots, length = self._compiled
            return max(slots, asked), max(length, wanted if plan.max_row_tokens else 0)
        fitting = self._free_bytes // (wanted * self._row_bytes)
        slots = asked or min(DEFAULT_ROWS, fitting)
        if not slots or slots > fitting:
            raise api.OutOfMemory(
                f"KV cache: {slots or 1} slots of {wanted} tokens need {(slots or 1) * wanted * self._row_bytes:,} bytes, and "
                f"{self._free_bytes:,} are free after weights of {self._shape.weight_bytes:,}; "
                "lower --max-batch-size or --max-total-tokens, or use more cores"
            )
        return slots, wanted

    @torch.inference_mode()
    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Prompts one by one, then all rows that take one token together."""
        found: dict[int, Tensor] = {}
        with neuron_errors():
            for row_input in row_inputs:
                if row_input.start == 0:
                    found[row_input.row.request.id] = self._encode(row_input)
            decoding = [row_input for row_input in row_inputs if row_input.take == 1]
            if decoding:
                logits = self._decode(decoding)
                found |= {row_input.row.request.id: logits[_slot(row_input)] for row_input in decoding}
        rows = [found[row_input.row.request.id] for row_input in row_inputs if row_input.yields]
        return StepLogits(torch.stack(rows) if rows else torch.zeros(0, self._shape.vocab_size))

    def release(self) -> None:
        """Free the model."""
        self._model = None
        self._filled = []

    def _encode(self, row_input: RowInput) -> Tensor:
        """Logits [vocabulary] after a whole prompt, which fills its slot from the beginning.

        A prompt of one token is no prompt for the model, which takes it for a decode row. It is encoded nevertheless, and the result is
        dropped: a not-a-number that the slot's last row left would reach it even from behind a mask.
        """
        ids, positions = (torch.zeros(1, self._length, dtype=torch.int32) for _ in range(2))
        ids[0, : row_input.take] = torch.tensor(row_input.row.tokens[: row_input.take])
        count = max(2, row_input.take)  # padding is at position 0, so that the last token alone has the largest one
        positions[0, :count] = torch.arange(count)
        logits = self._call(ids, positions, [_slot(row_input)])
        self._filled[_slot(row_input)] = row_input.take if row_input.take > 1 else 0
        return logits[0]

    def _decode(self, row_inputs: Sequence[RowInput]) -> Tensor:
        """Logits [slots, vocabulary] after the next token of each slot."""
        ids = torch.zeros(len(self._filled), 1, dtype=torch.int32)
        for row_input in row_inputs:
            ids[_slot(row_input), 0] = row_input.row.tokens[row_input.start]
            self._filled[_slot(row_input)] = row_input.start
        positions = torch.tensor(self._filled, dtype=torch.int32).clamp_max(self._length - 1).unsqueeze(1)
        logits = self._call(ids, positions, range(len(self._filled)))
        for row_input in row_inputs:
            self._filled[_slot(row_input)] = row_input.start + 1
        return logits

    def _call(self, ids: Tensor, positions: Tensor, slots: Sequence[int]) -> Tensor:
        unused = torch.ones(len(slots), 3)  # parameters of sampling on the device
        logits = self._model(ids, positions, torch.tensor(slots, dtype=torch.int32), unused)
        return logits[:, -1, : self._shape.vocab_size].float()


class SlotSession(SyncSession):
    """The session over a `SlotRunner`."""

    @api.hookimpl
    def warmup(self, plan: api.WarmupPlan, progress: api.Progress) -> api.Capacity:
        """Compile or find the programs, and load the model. Raises InvalidRequest on a second call, OutOfMemory, Unsupported."""
        cast(SlotRunner, self.runner).progress = progress
        return super().warmup(plan, progress)


def _slot(row_input: RowInput) -> int:
    return row_input.row.tables[0][0] - 1
