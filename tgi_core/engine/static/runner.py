"""Runs a decoder's table as static programs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import cast

import torch

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Feature, Kernel, Progress
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.device import QueuedDevice
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.all_reduce import GroupAllReduce
from tgi_core.engine.attention.blocks import TableAttention
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.compiling.base import ProgramCompiler
from tgi_core.engine.decoder.forward import DecoderForward
from tgi_core.engine.decoder.partition import with_all_reduce
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.drafts import PART as DRAFTS
from tgi_core.engine.drafts import rounding_note
from tgi_core.engine.memory import check_room
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.runner import StepLogits
from tgi_core.engine.sampler import takes_argmax
from tgi_core.engine.static.buckets import Buckets, Grid
from tgi_core.engine.static.device import StaticKit
from tgi_core.engine.static.programs import Programs
from tgi_core.engine.static.regions import Forward
from tgi_core.engine.static.steps import StaticSteps


class StaticRunner(PagedDecoderRunner):
    """A decoder on a static device, or a rank's part of one with `collectives`; its steps are a session's `StaticSteps`."""

    def __init__(
        self, kit: StaticKit, weights: DecoderWeights, progress: Progress, collectives: Collectives | None = None
    ) -> None:
        """Load the weights. Raises OutOfMemory, UnsupportedFamily."""
        check_room(weights.num_bytes, kit.free_bytes())
        super().__init__(kit, weights, (TorchOperators(),), progress)
        self.kit, self.collectives = kit, collectives
        self.features |= {Feature.SPECULATION}
        self.kernels = (*self.kernels, Kernel(DRAFTS, "run", rounding_note(self.shape.dtype, self.cache_dtype)))
        if collectives is not None:
            self.decoder, self.agree = with_all_reduce(self.decoder, GroupAllReduce(collectives.name)), collectives.least
        queue = kit.queue()
        if queue is None:
            raise TypeError("a static device has a queue")
        self.device = QueuedDevice(kit, queue, self.shape)
        self._steps: StaticSteps | None = None

    def steps(self, capacity: Capacity, buckets: Buckets, compiler: ProgramCompiler, argmax: bool) -> StaticSteps:
        """Steps over the cache in use, no program of which is compiled; `argmax`: the device samples the rows that it can."""
        rows, width, vocab = capacity.max_rows, -(-capacity.max_row_tokens // self.block_size), self.shape.vocab_size
        row_slots = RowSlots(rows, width, vocab, partial(takes_argmax, vocab_size=vocab) if argmax else lambda row: False)
        provider, queue = cast(TableAttention, self.provider), self.device.queue
        forward: Forward = DecoderForward(self.decoder, self.operators, provider, self._cache_in_use().layers)
        programs = Programs(forward, compiler, queue.sampler(), row_slots.waste + 1, self.kit.device)
        logits = torch.zeros(0, vocab, dtype=self.decoder.final_norm.dtype)
        self._steps = StaticSteps(programs, buckets, row_slots, queue, self.kit.device, logits)
        return self._steps

    def fields(self, capacity: Capacity) -> dict[str, str]:
        """What the programs for these limits depend on besides their shapes, by name."""
        group, table = capacity.groups[0], repr(self.decoder.table)
        return {
            "model": f"{self.decoder.table.model_type} {hashlib.sha256(table.encode()).hexdigest()[:16]}",
            "weights": f"{str(self.shape.dtype).removeprefix('torch.')}, {self.shape.weight_bytes} bytes",
            "attention": self.provider.name,
            "rank": "0 of 1" if self.collectives is None else f"{self.collectives.rank} of {self.collectives.world}",
            "rows": str(capacity.max_rows),
            "blocks": f"{group.num_blocks} of {group.block_size}",
            "tgi-core": version("tgi-core"),
            **self.kit.compiler(),
        }

    def run(self, row_inputs: Sequence[RowInput]) -> StepLogits:
        """Compute one step over the cache in use and wait for it: all logits come to the host."""
        steps = self._steps or self._probe_steps()
        step = steps.enqueue(row_inputs, {row_input.row.request.id for row_input in row_inputs})
        if self.collectives is not None:
            self.collectives.settle()
        step.wait()
        if not step.step.waiting:  # chunks of prompts, whose logits are not needed
            return StepLogits(torch.zeros(0, self.shape.vocab_size))
        return step.held(row_inputs)

    @property
    def compiles(self) -> int:
        """Number of compiled programs, by the compiler's own counter."""
        return 0 if self._steps is None else self._steps.compiles

    def release(self) -> None:
        """Free the cache and its programs."""
        if self._steps is not None:
            self._steps.release()
            self._steps = None
        super().release()

    def _probe_steps(self) -> StaticSteps:
        """Steps over the probe cache, of five programs."""
        size = self.block_size
        capacity = Capacity((CacheGroup(CacheKind.FULL, size, 2),), 2, size, size, 2)
        buckets = Buckets(size, Grid(1, {2: (2,)}, (2,), self.kit.rules.flat), {size: Grid(size, {1: (1,)}, (size,))})
        steps = self.steps(capacity, buckets, self.kit.program_compiler(self.fields(capacity), None), argmax=False)
        for shape in buckets.shapes():
            self.device.queue.run(partial(steps.programs.warm, shape))
        return steps
