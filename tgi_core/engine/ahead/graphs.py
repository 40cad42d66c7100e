"""CUDA graphs and their equivalents: steps are captured for some sizes, and other steps are padded to these.

A lean graph is for decode steps whose rows all take the argmax (or also draw, if that is cheap with the device's sampler). A full one
also draws, and returns the logits for rows that the host samples; there are fewer of these. A mixed one is a full one that runs prompts
of a few hundred tokens beside the rows that decode: launching so small a step kernel by kernel takes longer than computing it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tgi_core.engine.ahead.bounds import StepBounds
from tgi_core.engine.ahead.inputs import Counts, Layout
from tgi_core.engine.ahead.program import StepProgram
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.step_layout import pad
from tgi_core.engine.device_queue import DeviceQueue, Graph, GraphCapturer
from tgi_core.engine.sizes import doublings, fitting


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A captured shape: `rows` rows with a token each, and up to `MIXED_PROMPTS` more with `tokens` tokens together."""

    tokens: int
    rows: int
    full: bool

    @property
    def logits(self) -> int:
        """The number of rows that get logits."""
        return self.rows + (MIXED_PROMPTS if self.tokens else 0)


MIXED_PROMPTS = 16
"""The most rows with several tokens in a captured step."""

MIXED_TOKENS = (32, 64, 128, 256, 512)
"""The most tokens that these have together, by graph. Beyond, a step takes longer than its launches."""

MIXED_ROWS = (8, 64)
"""The rows with one token in mixed graphs beside those with room for all rows: padding is computed too."""

_MIXED_UPDATES = 1024
"""Changes of block tables in a mixed step: those of new rows, with what their slots held before."""


def buckets(max_rows: int, mixed: bool = False) -> list[Bucket]:
    """Shapes to capture for up to `max_rows` rows, largest first: lean ones for 1, 2, 4 and every 8 rows, full ones for powers of two;
    `mixed` ones for few rows and for all."""
    lean = {1, 2, 4, *range(8, max_rows, 8), max_rows}
    full = set(doublings(1, max_rows))
    found = [Bucket(0, rows, kind) for kind, sizes in ((False, lean), (True, full)) for rows in sizes if rows <= max_rows]
    if mixed:
        few = {rows for rows in MIXED_ROWS if rows < max_rows}
        found += [Bucket(tokens, rows, True) for tokens in MIXED_TOKENS for rows in (*few, max_rows)]
    return sorted(found, reverse=True)


@dataclass(slots=True)
class StaticBuffers:
    """The device buffers that all captured steps read and write, one after another."""

    inputs: Tensor
    """int32 words."""
    results: Tensor
    """int32 [2 · rows of the largest]."""
    logits: Tensor | None = None
    """[rows of the largest, vocabulary], once a full step has run."""


class StepGraphs:
    """The captured steps of one session."""

    def __init__(
        self,
        program: StepProgram,
        queue: DeviceQueue,
        capturer: GraphCapturer,
        row_slots: RowSlots,
        max_rows: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._program, self._queue, self._capturer, self._row_slots = program, queue, capturer, row_slots
        self._block_size = block_size
        self.wanted = buckets(max_rows, program.captures_prompts)
        self._layouts: dict[Bucket, Layout] = {}
        self._most = max(bucket.logits for bucket in self.wanted)
        with torch.inference_mode():
            words = torch.zeros(max(self.layout(each).words for each in self.wanted), dtype=torch.int32, device=device)
            results = torch.zeros(2 * self._most, dtype=torch.int32, device=device)
        self.memory = StaticBuffers(words, results)
        self._graphs: dict[Bucket, Graph] = {}
        self._sizes: dict[bool, list[int]] = {False: [], True: []}

    @property
    def count(self) -> int:
        """The number of captured steps."""
        return len(self._graphs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the shared buffers."""
        tensors = (self.memory.inputs, self.memory.results)
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors)

    def layout(self, bucket: Bucket) -> Layout:
        """The layout of the inputs of a captured step."""
        if bucket not in self._layouts:
            counts = Counts.of_decode(bucket.rows)
            if bucket.tokens:
                counts = Counts.of_mixed(bucket.rows, MIXED_PROMPTS, bucket.tokens, _MIXED_UPDATES)
            self._layouts[bucket] = Layout(counts, self._program.precision)
        return self._layouts[bucket]

    def capture(self, wanted: Sequence[Bucket] | None = None) -> Iterator[Bucket]:
        """Capture each in turn, by default all, and yield it when it is done. Raises CannotCapture, OutOfMemory."""
        for bucket in self.wanted if wanted is None else wanted:
            self._queue.run(partial(self._empty, bucket))
            self._graphs[bucket] = self._capturer.capture(partial(self._run, bucket))
            if not bucket.tokens:
                insort(self._sizes[bucket.full], bucket.rows)
            yield bucket

    def bucket(self, rows: int, full: bool) -> Bucket | None:
        """The smallest captured shape for `rows` rows that decode."""
        size = fitting(self._sizes[full], rows)
        return None if size is None else Bucket(0, size, full)

    def mixed_bucket(self, rows: int, prompts: int, tokens: int, updates: int) -> Bucket | None:
        """The smallest captured shape for `rows` rows with a token each, `prompts` others with `tokens` tokens together, and so many
        `updates` of block tables."""
        if prompts > MIXED_PROMPTS or updates > _MIXED_UPDATES:
            return None
        fit = (each for each in self._graphs if each.tokens >= tokens > 0 and each.rows >= rows)
        return min(fit, key=lambda each: each.tokens + each.rows, default=None)

    def replay(self, bucket: Bucket) -> None:
        """Enqueue a captured step over the inputs in the shared buffers."""
        self._graphs[bucket].replay()

    def release(self) -> None:
        """Free everything."""
        self._graphs.clear()
        self._sizes = {False: [], True: []}
        self._capturer.release()

    @torch.inference_mode()
    def _empty(self, bucket: Bucket) -> None:
        """Set the inputs to those of a step without rows."""
        layout = self.layout(bucket)
        words = torch.zeros(layout.words, dtype=torch.int32)
        pad(self._row_slots, layout.host(words), bucket.rows)
        self.memory.inputs[: layout.words].copy_(words)

    @torch.inference_mode()
    def _run(self, bucket: Bucket) -> None:
        layout, memory, width = self.layout(bucket), self.memory, self._row_slots.width
        inputs = layout.device(memory.inputs[: layout.words])
        if bucket.tokens:
            bounds = StepBounds.of_mixed(bucket.rows, MIXED_PROMPTS, bucket.tokens, width, self._block_size)
        else:
            bounds = StepBounds.of_decode(bucket.rows, width, self._block_size)
        logits, _ = self._program.step(inputs, bounds, bucket.full, memory.results[: 2 * bucket.logits])
        if bucket.full:
            if memory.logits is None:  # in the run before the first capture, which is the largest
                memory.logits = torch.zeros(self._most, logits.shape[-1], dtype=logits.dtype, device=logits.device)
            memory.logits[: bucket.logits].copy_(logits)
