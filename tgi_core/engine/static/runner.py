"""Runs a decoder's table as static programs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import cast

import torch

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Progress
from tgi_core.backend.ledger import LiveRow, Work
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.partition import summed
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.static.attention import TableAttention
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.grid import Grid, GridRules, HeadShape, Shape
from tgi_core.engine.static.programs import Maker, Programs
from tgi_core.engine.static.regions import Forward
from tgi_core.engine.static.steps import StaticSteps, takes_argmax


class ProofRules(GridRules):
    """The grid of the self-check at load: three programs."""

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """One size."""
        return (max_rows,)


class StaticRunner(PagedDecoderRunner):
    """A decoder on a static device; its steps are a session's `StaticSteps`."""

    def __init__(
        self, kit: StaticKit, weights: DecoderWeights, progress: Progress, collectives: Collectives | None = None
    ) -> None:
        """Load the weights, which are this rank's part where there are `collectives`. Raises UnsupportedFamily."""
        super().__init__(kit, weights, (TorchOperators(),), progress)
        self._static_kit, self._collectives = kit, collectives
        if collectives is not None:
            self.decoder, self.agree = summed(self.decoder, collectives.name), collectives.least
        queue = kit.queue()
        if queue is None:
            raise TypeError("a static device has a queue")
        self.queue: DeviceQueue = queue
        self._running: StaticSteps | None = None

    def steps(self, capacity: Capacity, grid: Grid, maker: Maker) -> tuple[StaticSteps, Programs]:
        """Steps over the cache in use, and their programs, none of which is compiled yet."""
        rows, width, vocab = capacity.max_rows, -(-capacity.max_row_tokens // self.block_size), self.shape.vocab_size
        samples = partial(takes_argmax, vocab) if self._collectives is None else _never  # ranks get rank 0's tokens
        self._running, programs = self._steps(RowSlots(rows, width, vocab, samples), grid, maker)
        return self._running, programs

    def fields(self, capacity: Capacity) -> dict[str, str]:
        """What the programs for these limits depend on beside their shapes, by name."""
        group, table = capacity.groups[0], repr(self.decoder.table)
        return {
            "model": f"{self.decoder.table.model_type} {hashlib.sha256(table.encode()).hexdigest()[:16]}",
            "weights": f"{str(self.shape.dtype).removeprefix('torch.')}, {self.shape.weight_bytes} bytes",
            "attention": self.provider.name,
            "rank": "0 of 1" if self._collectives is None else f"{self._collectives.rank} of {self._collectives.world}",
            "rows": str(capacity.max_rows),
            "blocks": f"{group.num_blocks} of {group.block_size}",
            "tgi-core": version("tgi-core"),
            **self._static_kit.compiler(),
        }

    def run(self, works: Sequence[Work]) -> StepLogits:
        """Compute one step over the cache in use and wait for it: all logits come to the host."""
        if self._running is None:
            self._running = self._proof_steps()
        step = self._running.give(works, {work.row.request.id for work in works})
        step.wait()
        if not step.step.waiting:  # chunks of prompts, of which nobody wants logits
            return StepLogits(torch.zeros(0, self.shape.vocab_size))
        return step.held(works)

    def release(self) -> None:
        """Free the cache and its programs."""
        if self._running is not None:
            self._running.release()
            self._running = None
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
