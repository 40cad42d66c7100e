"""CUDA graphs and their like: decode steps captured for some numbers of rows; steps in between are padded.

A lean graph is for steps whose rows all take the argmax (or also draw, if that is cheap with the device's sampler). A full one also
draws, and returns the logits for rows that the host samples; there are fewer of these.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
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
    """A captured shape."""

    rows: int
    full: bool


def buckets(max_rows: int) -> list[Bucket]:
    """Shapes to capture for up to `max_rows` rows, largest first: lean ones for 1, 2, 4 and every 8 rows, full ones for powers of two."""
    lean = {1, 2, 4, *range(8, max_rows, 8), max_rows}
    full = set(doublings(1, max_rows))
    found = [Bucket(rows, kind) for kind, sizes in ((False, lean), (True, full)) for rows in sizes if rows <= max_rows]
    return sorted(found, reverse=True)


@dataclass(slots=True)
class StaticBuffers:
    """The device buffers that all captured steps read and write, one after another."""

    inputs: Tensor
    """int32 words."""
    results: Tensor
    """int32 [2 · max_rows]."""
    logits: Tensor | None = None
    """[max_rows, vocabulary], once a full step has run."""


class DecodeGraphs:
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
        self._max_rows, self._block_size = max_rows, block_size
        self._layouts: dict[int, Layout] = {}
        with torch.inference_mode():
            words = torch.zeros(self.layout(max_rows).words, dtype=torch.int32, device=device)
            results = torch.zeros(2 * max_rows, dtype=torch.int32, device=device)
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

    def layout(self, rows: int) -> Layout:
        """The layout of the inputs of a step of `rows` rows."""
        if rows not in self._layouts:
            self._layouts[rows] = Layout(Counts.of_decode(rows), self._program.precision)
        return self._layouts[rows]

    def capture(self, wanted: list[Bucket]) -> Iterator[Bucket]:
        """Capture each in turn, and yield it when it is done. Raises CannotCapture, OutOfMemory."""
        for bucket in wanted:
            self._queue.run(partial(self._empty, bucket.rows))
            self._graphs[bucket] = self._capturer.capture(partial(self._run, bucket))
            insort(self._sizes[bucket.full], bucket.rows)
            yield bucket

    def bucket(self, rows: int, full: bool) -> Bucket | None:
        """The smallest captured shape for `rows` rows."""
        size = fitting(self._sizes[full], rows)
        return None if size is None else Bucket(size, full)

    def replay(self, bucket: Bucket) -> None:
        """Enqueue a captured step over the inputs in the shared buffers."""
        self._graphs[bucket].replay()

    def release(self) -> None:
        """Free everything."""
        self._graphs.clear()
        self._sizes = {False: [], True: []}
        self._capturer.release()

    @torch.inference_mode()
    def _empty(self, rows: int) -> None:
        """Set the inputs to those of a step without rows."""
        layout = self.layout(rows)
        words = torch.zeros(layout.words, dtype=torch.int32)
        pad(self._row_slots, layout.host(words), 0, 0)
        self.memory.inputs[: layout.words].copy_(words)

    @torch.inference_mode()
    def _run(self, bucket: Bucket) -> None:
        layout, memory = self.layout(bucket.rows), self.memory
        inputs = layout.device(memory.inputs[: layout.words])
        bounds = StepBounds.of_decode(bucket.rows, self._row_slots.width, self._block_size)
        logits, _ = self._program.step(inputs, bounds, bucket.full, memory.results[: 2 * bucket.rows])
        if bucket.full:
            if memory.logits is None:  # in the run before the first capture, which is the largest
                memory.logits = torch.zeros(self._max_rows, logits.shape[-1], dtype=logits.dtype, device=logits.device)
            memory.logits[: bucket.rows].copy_(logits)
