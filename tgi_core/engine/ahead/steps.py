"""Enqueuing steps, eagerly or by replaying a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.graphs import Bucket, StepGraphs
from tgi_core.engine.ahead.in_flight import InFlightStep
from tgi_core.engine.ahead.inputs import Counts, Layout
from tgi_core.engine.ahead.persistent_batch import PersistentBatch
from tgi_core.engine.ahead.processing import LogitsProcessing
from tgi_core.engine.ahead.program import StepProgram
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.staging import Staging, StagingBuffer
from tgi_core.engine.ahead.step_layout import StepLayout, bounds, exact, fill, lay_out_step
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.runner import CapturableRunner


class StepEnqueuer(Protocol):
    """Runs a session's steps on its device."""

    @property
    def compiles(self) -> int:
        """The number of compiled programs or captured steps."""

    def enqueue(self, row_inputs: Sequence[RowInput], live: Set[int]) -> InFlightStep:
        """Enqueue a step, without waiting for it. `live` are the ids of rows that keep their slots. If it raises, only this step's rows
        are affected."""

    def forget(self, given: InFlightStep) -> None:
        """Record that a step failed on the device."""

    def release(self) -> None:
        """Free everything. Idempotent."""


class DeviceSteps:
    """Runs steps of rows on a device's queue, over the runner's cache as it is now."""

    def __init__(
        self, runner: CapturableRunner, queue: DeviceQueue, device: torch.device, max_rows: int, width: int, vocab_size: int
    ) -> None:
        self._queue, self._device, self._block_size = queue, device, runner.block_size
        sampler = queue.sampler()
        self._program = StepProgram(runner, sampler, max_rows + 2, width, device)
        self._row_slots = RowSlots(
            max_rows, width, vocab_size, lambda row: self._program.samples(row, vocab_size), self._program.processes
        )
        self.processing: LogitsProcessing | None = None
        if sampler.processes:
            self.processing = LogitsProcessing(queue, sampler, self._row_slots, self._program.newest, vocab_size, device)
        most = Layout(Counts.of_decode(max_rows), self._program.precision)
        self._staging = Staging(queue, most.words, max_rows)
        self._batch = PersistentBatch(self._row_slots, self._block_size)
        self._max_rows = max_rows
        self.graphs: StepGraphs | None = None

    def use_graphs(self) -> StepGraphs | str:
        """Allocate buffers for captured steps, which the caller captures; or why the device has no graphs."""
        capturer = self._queue.graphs()
        if isinstance(capturer, str):
            return capturer
        parts = (self._program, self._queue, capturer, self._row_slots)
        self.graphs = StepGraphs(*parts, self._max_rows, self._block_size, self._device)
        return self.graphs

    @property
    def compiles(self) -> int:
        """The number of captured steps."""
        return 0 if self.graphs is None else self.graphs.count

    def enqueue(self, row_inputs: Sequence[RowInput], live: Set[int]) -> InFlightStep:
        """Enqueue a step, without waiting for it. `live` are the ids of rows that keep their slots.

        If it raises, only this step's rows are affected.
        """
        place = self._staging.next()
        step = self._batch.next(row_inputs) or lay_out_step(row_inputs, self._row_slots, live, self._block_size)
        try:
            bucket = self._bucket(step)
            given = self._run_eagerly(step, place) if bucket is None else self._replay(step, place, bucket)
            self._process(given)
        except BaseException:
            self._forget(step)
            raise
        self._row_slots.note_sampled(step.row_slots, step.plain_rows + step.processed_rows)
        self._batch.keep(step)
        return given

    def forget(self, given: InFlightStep) -> None:
        """Record that a step failed on the device, so that its rows' tables there are unknown."""
        self._forget(given.step)

    def _forget(self, step: StepLayout) -> None:
        self._row_slots.forget(step.row_slots)
        self._batch.forget()

    def release(self) -> None:
        """Free the captured steps."""
        if self.graphs is not None:
            self.graphs.release()

    def _process(self, given: InFlightStep) -> None:
        """Sample the rows whose logits are processed first; those with masks when they have come."""
        step = given.step
        if self.processing is None or not step.processed:
            return
        processing = self.processing

        def logits() -> Tensor:
            if given.logits is None:
                raise RuntimeError("the step has not run")
            return given.logits

        def sample(row_inputs: Sequence[RowInput], masks: bytes = b"") -> None:
            places = [given.last[row_input.row.request.id] for row_input in row_inputs]
            taken = self._row_slots.of([row_input.row for row_input in row_inputs])
            given.processed.append(processing.enqueue(logits, row_inputs, places, taken, masks))

        given.masked = [row_input for row_input in step.processed if row_input.row.request.masked]
        given.sample_masked = sample
        if len(given.masked) < len(step.processed):
            sample(
                [row_input for row_input in step.processed if not row_input.row.request.masked]
                if given.masked
                else step.processed
            )

    def _bucket(self, step: StepLayout) -> Bucket | None:
        """The captured shape to replay for a step, if there is one."""
        if self.graphs is None:
            return None
        if not step.decodes:
            rows = step.decode_rows
            parts = (rows, len(step.order) - rows, step.tokens - rows, len(step.cells))
            return self.graphs.mixed_bucket(*parts) if step.mixes else None
        if step.scored.places or len(step.cells) > len(step.order):
            return None
        full = bool(step.waiting or step.processed) or (step.draws and not self._program.lean_draws)
        return self.graphs.bucket(len(step.order), full)

    def _run_eagerly(self, step: StepLayout, place: StagingBuffer) -> InFlightStep:
        """Run a step eagerly, kernel by kernel."""
        layout = Layout(exact(step), self._program.precision)
        words, results = place.inputs(layout.words), place.results(2 * len(step.plain))
        fill(step, self._row_slots, layout.host(words), self._block_size)
        limits = bounds(step, self._row_slots, self._block_size)
        given = place.step = InFlightStep(step, None, step.last)

        @torch.inference_mode()
        def work() -> None:
            inputs = layout.device(words.to(self._device, non_blocking=True))
            made = torch.empty(len(results), dtype=torch.int32, device=self._device)
            logits, given.scores = self._program.step(inputs, limits, step.draws, made)
            results.copy_(made, non_blocking=True)
            given.logits = logits if step.waiting or step.processed else None

        return self._submit(given, results, work)

    def _replay(self, step: StepLayout, place: StagingBuffer, bucket: Bucket) -> InFlightStep:
        """Replay a captured step: one copy in, one call, one copy out."""
        graphs = self.graphs
        if graphs is None:
            raise RuntimeError("a bucket without graphs")
        layout, memory = graphs.layout(bucket), graphs.memory
        words, results = place.inputs(layout.words), place.results(2 * bucket.logits)
        rows = self._batch.fill(step, layout, words, bucket.rows)
        ids = [row_input.row.request.id for row_input in step.order] if step.waiting or step.processed else []
        last = dict(zip(ids, rows.tolist(), strict=False))
        places = None if step.plain is step.order and step.decodes else rows[step.plain_rows].tolist()
        given = place.step = InFlightStep(step, places, last)

        @torch.inference_mode()
        def work() -> None:
            memory.inputs[: layout.words].copy_(words, non_blocking=True)
            graphs.replay(bucket)
            results.copy_(memory.results[: len(results)], non_blocking=True)
            given.logits = memory.logits

        return self._submit(given, results, work)

    def _submit(self, given: InFlightStep, results: Tensor, work: Callable[[], None]) -> InFlightStep:
        try:
            self._queue.run(work)
        finally:  # a copy of the inputs may be under way, whatever failed after it
            given.enqueued(self._queue.record(), results)
        return given
