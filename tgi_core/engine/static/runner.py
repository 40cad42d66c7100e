"""Runs a decoder's table as static programs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import cast

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Progress
from tgi_core.backend.ledger import LiveRow, Work
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.static.attention import TableAttention
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.grid import Grid, GridRules, HeadShape, Shape
from tgi_core.engine.static.programs import Forward, Maker, Programs
from tgi_core.engine.static.steps import StaticSteps, takes_argmax


class ProofRules(GridRules):
    """The grid of the self-check at load: three programs."""

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """One size."""
        return (max_rows,)


class StaticRunner(PagedDecoderRunner):
    """A decoder on a static device; its steps are a session's `StaticSteps`."""

    def __init__(self, kit: StaticKit, weights: DecoderWeights, progress: Progress) -> None:
        """Load the weights. Raises UnsupportedFamily."""
        super().__init__(kit, weights, (TorchOperators(),), progress)
        self._static_kit = kit
        queue = kit.queue()
        if queue is None:
            raise TypeError("a static device has a queue")
        self.queue: DeviceQueue = queue
        self._proof: StaticSteps | None = None

    def steps(self, capacity: Capacity, grid: Grid, maker: Maker) -> tuple[StaticSteps, Programs]:
        """Steps over the cache in use, and their programs, none of which is compiled yet."""
        rows, width, vocab = capacity.max_rows, -(-capacity.max_row_tokens // self.block_size), self.shape.vocab_size
        row_slots = RowSlots(rows, width, vocab, partial(takes_argmax, vocab))
        return self._steps(row_slots, grid, maker)

    def fields(self, capacity: Capacity) -> dict[str, str]:
        """What the programs for these limits depend on beside their shapes, by name."""
        group, table = capacity.groups[0], repr(self.decoder.table)
        return {
            "model": f"{self.decoder.table.model_type} {hashlib.sha256(table.encode()).hexdigest()[:16]}",
            "weights": f"{str(self.shape.dtype).removeprefix('torch.')}, {self.shape.weight_bytes} bytes",
            "attention": self.provider.name,
            "rows": str(capacity.max_rows),
            "blocks": f"{group.num_blocks} of {group.block_size}",
            "tgi-core": version("tgi-core"),
            **self._static_kit.compiler(),
        }

    def run(self, works: Sequence[Work]) -> StepLogits:
        """Compute one step of the self-check, over the probe cache: all logits come to the host."""
        if self._proof is None:
            self._proof = self._proof_steps()
        step = self._proof.give(works, {work.row.request.id for work in works})
        step.wait()
        return step.held(works)

    def release(self) -> None:
        """Free the cache, and the programs of the self-check."""
        if self._proof is not None:
            self._proof.release()
            self._proof = None
        super().release()

    def _proof_steps(self) -> StaticSteps:
        size = self.block_size
        capacity = Capacity((CacheGroup(CacheKind.FULL, size, 2),), 2, size, size, 2)
        rules = replace(self._static_kit.rules, takes=(size,))
        grid = Grid.of(capacity, ProofRules(rules.takes, rules.waste, rules.flat))
        maker = self._static_kit.maker(self.fields(capacity), None)
        steps, programs = self._steps(RowSlots(2, 1, self.shape.vocab_size, _never), grid, maker)
        shapes: list[Shape | HeadShape] = [*grid.bodies(), *(head for head in grid.heads() if head.kept <= 2)]
        for shape in shapes:
            self.queue.run(partial(programs.warm, shape))
        return steps

    def _steps(self, row_slots: RowSlots, grid: Grid, maker: Maker) -> tuple[StaticSteps, Programs]:
        provider = cast(TableAttention, self.provider)
        forward: Forward = DecoderForward(self.decoder, self.operators, provider, self._cache_in_use().layers)
        programs = Programs(forward, grid, maker, self.queue.sampler(), row_slots.waste + 1, self._kit.device)
        dtype = self.decoder.final_norm.dtype
        return StaticSteps(programs, self.queue, self._kit.device, row_slots, self.shape.vocab_size, dtype), programs


def _never(row: LiveRow) -> bool:
    return False
