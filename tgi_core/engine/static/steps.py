"""Enqueuing steps as programs: each gets its inputs by one copy, and what the host needs comes back by copies of fixed sizes.

Nothing else touches the device's tensors here: a slice of one would be a program that nobody warmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tgi_core.backend.ledger import LiveRow, Work
from tgi_core.engine.ahead.in_flight import InFlightStep
from tgi_core.engine.ahead.row_slots import RowSlots
from tgi_core.engine.ahead.staging import Staging
from tgi_core.engine.ahead.step_layout import StepLayout, lay_out_step
from tgi_core.engine.device_queue import DeviceQueue
from tgi_core.engine.runner import prompt_positions
from tgi_core.engine.sampler import is_plain
from tgi_core.engine.static.grid import PROMPT_HEAD, HeadShape
from tgi_core.engine.static.laying import body_words, head_words, lay_body
from tgi_core.engine.static.programs import Programs
from tgi_core.engine.static.splitting import Call, Part, split


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of some tokens of a call. `result` and `logits` are where they go among the step's; `slots` are the row slots of rows that the
    device samples, by place."""

    shape: HeadShape
    kept: Sequence[int]
    slots: Sequence[int]
    result: int
    logits: int


@dataclass(slots=True)
class Wanted:
    """Where the results of a step's rows are, by request: as `StepLayout` has them for logits, and the places of sampled tokens."""

    last: dict[int, int] = field(default_factory=dict)
    prompt: dict[int, tuple[int, int]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    results: int = 0
    logits: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """A program's inputs on the host, and what it writes there."""

    words: Tensor
    result: Tensor | None = None
    logits: Tensor | None = None


class StaticSteps:
    """Runs steps of rows as warmed programs; see `EnqueuesSteps`."""

    def __init__(
        self,
        programs: Programs,
        queue: DeviceQueue,
        device: torch.device,
        row_slots: RowSlots,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._programs, self._queue, self._device = programs, queue, device
        self._row_slots, self._grid = row_slots, programs.grid
        self._staging = Staging(queue, 0, 0)
        self._logits = torch.zeros(0, vocab_size, dtype=dtype)

    @property
    def compiles(self) -> int:
        """Compiled programs, by the compiler's own counter."""
        return self._programs.compiles

    def give(self, works: Sequence[Work], live: Set[int]) -> InFlightStep:
        """Enqueue a step, without waiting for it; see `EnqueuesSteps.give`."""
        place = self._staging.next()
        step = lay_out_step(works, self._row_slots, live, self._grid.block_size)
        try:
            wanted = Wanted()
            calls = [
                (call, list(self._heads(call, step, wanted)))
                for call in split(step.starts.tolist(), step.takes.tolist(), self._grid)
            ]
            words = place.inputs(sum(map(self._count, calls)))
            results = place.results(wanted.results).view(-1, 2)
            logits = self._logits_for(wanted.logits if step.waiting else 0)
            given = place.step = InFlightStep(
                step, [wanted.places[work.row.request.id] for work in step.plain], wanted.last, wanted.prompt
            )
            given.logits = logits
            self._enqueue(list(self._laid(calls, step, words, results, logits)), given, results)
            return given
        except BaseException:
            self._row_slots.forget(step.row_slots)
            raise

    def forget(self, given: InFlightStep) -> None:
        """Record that a step failed on the device, so that its rows are laid out anew."""
        self._row_slots.forget(given.step.row_slots)

    def release(self) -> None:
        """Free the programs."""
        self._programs.release()

    def _heads(self, call: Call, step: StepLayout, wanted: Wanted) -> Iterator[Head]:
        """The logits that a call's rows need; notes in `wanted` where they will be."""
        if call.shape.take == 1:
            yield self._decode_head(call, step, wanted)
        else:
            yield from self._prompt_heads(call, call.parts[0], step, wanted)

    def _decode_head(self, call: Call, step: StepLayout, wanted: Wanted) -> Head:
        shape, slots = self._grid.head(call.shape, len(call.parts)), []
        for place, part in enumerate(call.parts):
            work = step.order[part.row]
            id, count = work.row.request.id, prompt_positions(work)
            wanted.places[id], wanted.last[id] = wanted.results + place, wanted.logits + place
            if count:
                wanted.prompt[id] = (wanted.logits + place, count)
            slots.append(self._sampled(part, step))
        head = Head(shape, range(shape.kept), slots, wanted.results, wanted.logits)
        wanted.results += shape.kept
        wanted.logits += shape.kept
        return head

    def _prompt_heads(self, call: Call, part: Part, step: StepLayout, wanted: Wanted) -> Iterator[Head]:
        """The last token's, where the row yields, and those of a prompt that is asked for, so many at a time."""
        work = step.order[part.row]
        id, first = work.row.request.id, part.start - work.start
        asked = list(range(min(part.take, max(0, prompt_positions(work) - first))))
        if asked:
            begin, count = wanted.prompt.get(id, (wanted.logits, 0))
            wanted.prompt[id] = (begin, count + len(asked))
        ends = first + part.take == work.take and work.yields
        if ends:
            asked += [part.take - 1] if part.take - 1 not in asked[-1:] else []
            wanted.last[id] = wanted.logits + len(asked) - 1
        shape = self._grid.head(call.shape, len(asked))
        for begin in range(0, len(asked), shape.kept):
            kept = asked[begin : begin + shape.kept]
            wanted.places[id] = wanted.results  # of rows that the device samples, which have one
            slots = [self._sampled(part, step)] if ends else []
            yield Head(shape, kept, slots, wanted.results, wanted.logits)
            wanted.results += shape.kept
            wanted.logits += len(kept)

    def _sampled(self, part: Part, step: StepLayout) -> int:
        """Where a row's newest token goes on the device, if it is sampled there."""
        slot = step.row_slots[part.row]
        return slot if self._row_slots.plain[slot] else self._row_slots.waste

    def _logits_for(self, count: int) -> Tensor | None:
        """[count and more, vocabulary] on the host, of one step at a time: its rows are sampled before the next one is given."""
        if not count:
            return None
        if len(self._logits) < count + PROMPT_HEAD:
            size = (count + PROMPT_HEAD) * self._logits.shape[1]
            self._logits = self._queue.host(size, self._logits.dtype).view(-1, self._logits.shape[1])
        return self._logits

    def _count(self, given: tuple[Call, list[Head]]) -> int:
        call, heads = given
        return body_words(call.shape, self._grid.flat).count + sum(head_words(head.shape).count for head in heads)

    def _laid(
        self, calls: list[tuple[Call, list[Head]]], step: StepLayout, words: Tensor, results: Tensor, logits: Tensor | None
    ) -> Iterator[tuple[Call, Given, list[tuple[Head, Given]]]]:
        """Every program with its part of the words, filled, and its places among the results."""
        begin = 0
        for call, heads in calls:
            layout = body_words(call.shape, self._grid.flat)
            mine = words[begin : begin + layout.count]
            lay_body(call, step, self._row_slots, self._grid.block_size, layout.host(mine.numpy()))
            begin += layout.count
            given = []
            for head in heads:
                layout, size = head_words(head.shape), head.shape.kept
                part = words[begin : begin + layout.count]
                views = layout.host(part.numpy())
                views["kept"][:], views["sampled"][:] = 0, self._row_slots.waste
                views["kept"][: len(head.kept)], views["sampled"][: len(head.slots)] = head.kept, head.slots
                begin += layout.count
                result = results[head.result : head.result + size]
                given.append((head, Given(part, result, None if logits is None else logits[head.logits : head.logits + size])))
            yield call, Given(mine), given

    def _enqueue(self, laid: list[tuple[Call, Given, list[tuple[Head, Given]]]], given: InFlightStep, results: Tensor) -> None:
        programs, device = self._programs, self._device

        @torch.no_grad()  # everywhere: grad mode is part of what a program was compiled for, and XLA knows no inference tensors
        def work() -> None:
            for call, inputs, heads in laid:
                hidden = programs.body(call.shape, inputs.words.to(device, non_blocking=True))
                for head, outputs in heads:
                    found, made = programs.head(head.shape, hidden, outputs.words.to(device, non_blocking=True))
                    if outputs.result is not None:
                        outputs.result.copy_(made, non_blocking=True)
                    if outputs.logits is not None:
                        outputs.logits.copy_(found, non_blocking=True)

        try:
            self._queue.run(work)
        finally:  # a copy of the inputs may be under way, whatever failed after it
            given.enqueued(self._queue.record(), results.t())


def takes_argmax(vocab_size: int, row: LiveRow) -> bool:
    """Whether the device samples a row: draws are left to the host, whose double precision gives exactly the formula's tokens."""
    return is_plain(row, vocab_size) and not row.request.sampling.do_sample
