"""Enqueuing steps as programs: each gets its inputs by one copy, and what the host needs comes back by copies of fixed sizes.

Nothing else touches the device's tensors here: a slice of one would be a program that was not warmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.ahead.in_flight import InFlightStep
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.staging import Staging
from tgi_core.engine.ahead.step_layout import StepLayout, lay_out_step
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.prompt_scores import prompt_logprobs
from tgi_core.engine.static.buckets import Buckets, Shape
from tgi_core.engine.static.program_inputs import HeadCall, fill_inputs, input_layout
from tgi_core.engine.static.programs import Programs
from tgi_core.engine.static.splitting import Call, split


class StaticSteps:
    """Runs steps of rows as warmed programs; see `StepEnqueuer`."""

    def __init__(
        self, programs: Programs, buckets: Buckets, row_slots: RowSlots, queue: DeviceQueue, device: torch.device, logits: Tensor
    ) -> None:
        """`logits` [0, vocabulary] has the dtype and width of those that come to the host."""
        self.programs, self.buckets = programs, buckets
        self._row_slots, self._queue, self._device, self._logits = row_slots, queue, device, [logits, logits]
        self._staging = Staging(queue, 0, 0)

    @property
    def compiles(self) -> int:
        """Compiled programs, by the compiler's own counter."""
        return self.programs.compiler.compiles()

    def enqueue(self, row_inputs: Sequence[RowInput], live: Set[int]) -> InFlightStep:
        """Enqueue a step, without waiting for it; see `StepEnqueuer.enqueue`."""
        place = self._staging.next()
        step = lay_out_step(row_inputs, self._row_slots, live, self.buckets.block_size)
        try:
            programs = list(self._programs(step))
            layouts = [input_layout(program.shape) for program in programs]
            words = place.inputs(sum(layout.count for layout in layouts)).split([layout.count for layout in layouts])
            for program, layout, part in zip(programs, layouts, words, strict=True):
                fill_inputs(program, step, self._row_slots, self.buckets.block_size, layout.host(part))
            results = place.results(2 * max((each.end for each in programs if isinstance(each, HeadCall)), default=0))
            given = place.step = ProgramsStep(step)
            given.logits = self._logits_of(len(results) // 2) if step.waiting else None
            self._submit(programs, words, given, results)
            return given
        except BaseException:
            self._row_slots.forget(step.row_slots)
            raise

    def forget(self, given: InFlightStep) -> None:
        """Record that a step failed on the device, so that its rows are laid out anew."""
        self._row_slots.forget(given.step.row_slots)

    def release(self) -> None:
        """Free the programs."""
        self.programs.release()

    def _programs(self, step: StepLayout) -> Iterator[Call | HeadCall]:
        """All programs in order, which is that of the step's tokens: after each call those of the logits that its tokens need."""
        wanted = _wanted(step)
        sampled = np.full(len(wanted), self._row_slots.waste)
        sampled[_places(step)] = step.row_slots[step.plain_rows]
        token = place = 0
        drafting = {row for row, row_input in enumerate(step.order) if row_input.drafts}
        for call in split(step.starts.tolist(), step.takes.tolist(), self.buckets, drafting):
            yield call
            places = call.places()
            ends = token + len(places)
            last = int(np.searchsorted(wanted, ends))
            shape = self.buckets.head(call.shape, last - place)
            while place < last:
                stop = min(last, place + shape.kept)
                yield HeadCall(shape, places[wanted[place:stop] - token], sampled[place:stop], place)
                place = stop
            token = ends

    def _logits_of(self, count: int) -> Tensor:
        """[count and more, vocabulary] on the host, of one step: its rows are sampled before the next one is given, and those with drafts
        before the one after that."""
        if self.buckets.draft:
            self._logits.reverse()
        if len(self._logits[0]) < count:
            width = self._logits[0].shape[1]
            self._logits[0] = self._queue.host(count * width, self._logits[0].dtype).view(-1, width)
        return self._logits[0]

    def _submit(self, programs: Sequence[Call | HeadCall], words: Sequence[Tensor], given: InFlightStep, results: Tensor) -> None:
        tokens, bits = results.view(2, -1)
        outputs = [tokens, bits.view(torch.float32), *([] if given.logits is None else [given.logits])]
        runs = []
        for program, part in zip(programs, words, strict=True):
            place = slice(program.at, program.end) if isinstance(program, HeadCall) else slice(0)
            runs.append((program.shape, part, [output[place] for output in outputs]))

        @torch.no_grad()  # everywhere: grad mode is part of what a program was compiled for, and XLA knows no inference tensors
        def work() -> None:
            for shape, part, wanted in runs:
                inputs = part.to(self._device, non_blocking=True)
                if isinstance(shape, Shape):
                    hidden = self.programs.run(shape, inputs)  # read by the heads after it
                    continue
                for output, made in zip(wanted, self.programs.run(shape, hidden, inputs), strict=False):
                    output.copy_(made, non_blocking=True)

        try:
            self._queue.run(work)
        finally:  # a copy of the inputs may be under way, whatever failed after it
            given.enqueued(self._queue.record(), results)


class ProgramsStep(InFlightStep):
    """A step whose logits, those of scored prompt tokens among them, come to the host."""

    def __init__(self, step: StepLayout) -> None:
        place = np.searchsorted(_wanted(step), step.kept)
        super().__init__(step, _places(step), {id: int(place[index]) for id, index in step.last.items()})

    def prompt_scores(self) -> Tensor | None:
        """Computed on the host."""
        step = self.step
        if self.logits is None or not step.scored.places:
            return None
        logits, places = self.logits, torch.from_numpy(np.searchsorted(_wanted(step), step.scored.places))
        return prompt_logprobs(partial(logits.index_select, 0), places, torch.tensor(step.scored.following))


def _wanted(step: StepLayout) -> np.ndarray:
    """The flat tokens whose logits are computed, in order."""
    scored = step.scored.places
    return np.sort(np.concatenate((step.kept, np.array(scored, np.int64)))) if scored else step.kept


def _places(step: StepLayout) -> list[int]:
    """Where the logits of the rows that the device samples are among the step's."""
    if not step.last:
        return step.plain_rows
    kept = step.kept[[step.last[row_input.row.request.id] for row_input in step.plain]]
    return np.searchsorted(_wanted(step), kept).tolist()
