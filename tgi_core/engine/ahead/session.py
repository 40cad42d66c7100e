"""The session of an asynchronous device: one step ahead.

A call enqueues its step at once and returns; reading a step waits for that step only. Tokens that the device samples stay there for the
next step, which is enqueued before the host knows them. Rows that the host samples get their tokens when the step is read or the next
one is launched, whichever comes first; their forward pass runs meanwhile. Rows with drafts sit out the next step, and get theirs when
the step is read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tgi_core.backend import (
    BackendError,
    Capacity,
    Closed,
    DeviceLost,
    Kernel,
    MaskSource,
    Progress,
    Row,
    Rows,
    Stats,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.ledger import Launch, Work
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.ahead.in_flight import InFlightStep
from tgi_core.engine.ahead.self_check import graphs_verdict
from tgi_core.engine.ahead.steps import EnqueuesSteps
from tgi_core.engine.ahead.warmup import warmed
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.failures import TORCH_ERRORS, translated
from tgi_core.engine.row_results import row_results
from tgi_core.engine.sampler import NOT_FINITE


@dataclass(slots=True)
class Flight:
    """A launched step that nobody has read. `made` are its rows by request: first those that the host samples, then all."""

    launch: Launch
    works: list[Work]
    started_ns: int
    given: InFlightStep | None = None
    row_results: bool = False
    read: bool = False
    made: dict[int, Row] = field(default_factory=dict)
    error: BackendError | None = None


class AheadSession(BaseSession):
    """One rank's session over one model, one step ahead of the reader."""

    def __init__(
        self,
        runner: AheadRunner,
        device: QueuedDevice,
        masks: MaskSource | None,
        adapters: tuple[str, ...] = (),
        kernels: tuple[Kernel, ...] = (),
        graphs: Kernel | None = None,
    ) -> None:
        """`graphs` says whether decode steps are captured; by default that is tried."""
        graphs = graphs or graphs_verdict(device, runner)
        super().__init__(runner, device.shape, masks, adapters, (*kernels, graphs))
        self._model, self._device, self._captures = runner, device, not graphs.reason
        self._device_steps: EnqueuesSteps | None = None
        self._flights: deque[Flight] = deque()
        self._lost: DeviceLost | None = None
        self._read_ns = 0

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Measure, reserve the cache, capture graphs. Raises InvalidRequest on a second call or an impossible plan, OutOfMemory."""
        self._check_plan(plan)
        try:
            self._device_steps, capacity = self._warmed(plan, progress)
        except TORCH_ERRORS as error:
            raise self._translated(error) from error
        return self._promise(capacity)

    def _warmed(self, plan: WarmupPlan, progress: Progress) -> tuple[EnqueuesSteps, Capacity]:
        return warmed(self._device, self._model, plan, self._captures, progress)

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Waits for the step; each is read once. Raises InvalidRequest, or what the step failed with."""
        while self._flights and self._flights[0].launch.step.id <= step.id:
            self._land(self._flights[0])
            self._flights.popleft()
        return self._taken(step)

    @hookimpl
    def stats(self) -> Stats:
        """Counters since open; `compiles` are captured steps, all of them made in warmup."""
        steps = self._device_steps
        return Stats(self._steps, 0 if steps is None else steps.compiles, self._capacity.memory if self._capacity else ())

    @hookimpl
    def close(self) -> Closed:
        """Free everything. Idempotent."""
        self._flights.clear()
        self._outcomes.clear()
        if self._device_steps is not None:
            self._device_steps.release()
        self._device_steps = self._ledger = None
        self._runner.release()
        return Closed()

    def _make_ready(self) -> None:
        if self._lost is not None:
            raise DeviceLost(str(self._lost))

    def _launch(self, launch: Launch) -> Step:
        """Enqueue a step. An error is the step's failure, not the call's: the ledger has changed already."""
        if self._flights:
            self._answer(self._flights[-1])  # its rows continue from the tokens that the host samples
        unread = [flight.launch for flight in self._flights]
        flight = Flight(launch, self._going(launch, unread), time.perf_counter_ns())
        self._flights.append(flight)
        self._steps += 1
        if flight.works and self._device_steps is not None:
            try:
                flight.given = self._device_steps.give(flight.works, self._book.live_ids)
            except (BackendError, *TORCH_ERRORS) as error:
                self._fail(flight, error)
        return launch.step

    def _answer(self, flight: Flight) -> None:
        """Sample the rows of the host's sampler. Their earlier tokens were sampled here too, before this step was launched."""
        if flight.row_results or flight.given is None:
            return
        flight.row_results = True
        waiting = flight.given.step.waiting
        answered = [work for work in waiting if not work.drafts]
        self._sample(flight, answered)
        if len(answered) == len(waiting):
            flight.given.logits = flight.given.scores = None

    def _verify(self, flight: Flight) -> None:
        """Sample the rows with drafts, whose earlier tokens have been read."""
        if flight.given is not None and flight.error is None:
            self._sample(flight, [work for work in flight.given.step.waiting if work.drafts])
            flight.given.logits = None

    def _sample(self, flight: Flight, waiting: Sequence[Work]) -> None:
        """Wait for the logits of rows that the host samples, and sample them."""
        given = flight.given
        works = [work for work in waiting if work.row.request.id not in self._failed]
        if given is None or not works:
            return

        @torch.inference_mode()
        def choose() -> tuple[Row, ...]:
            return row_results(works, given.held(works), self._masks)

        try:
            given.wait()
            rows = self._device.now(choose)
        except (BackendError, *TORCH_ERRORS) as error:
            self._fail(flight, error)
            return
        self._note(flight, works, rows)

    def _read(self, flight: Flight) -> None:
        """Read the tokens that the device sampled."""
        if flight.read or flight.given is None:
            return
        flight.read = True
        works, rows = list[Work](), list[Row]()
        try:
            for work, token, logprob in flight.given.read():
                works.append(work)
                rows.append(_plain_row(work, token, logprob))
        except (BackendError, *TORCH_ERRORS) as error:
            self._fail(flight, error)
            return
        self._note(flight, works, rows)
        for work in flight.works:
            id = work.row.request.id
            if id not in self._failed:
                flight.made.setdefault(id, Row(id))  # its prompt is not complete

    def _note(self, flight: Flight, works: Sequence[Work], rows: Sequence[Row]) -> None:
        """Record the step's rows, except for rows that failed before."""
        for work, row in zip(works, rows, strict=True):
            if row.request_id not in self._failed:
                flight.made[row.request_id] = row
                self._keep(work, row)

    def _land(self, flight: Flight) -> None:
        """Finish a step: record its rows, or its failure and that of everything derived from it."""
        self._answer(flight)
        self._verify(flight)
        self._read(flight)
        done = time.perf_counter_ns()
        if flight.error is not None:
            self._outcomes[flight.launch.step.id] = flight.error
        else:
            rows = tuple(flight.made[work.row.request.id] for work in flight.works if work.row.request.id in flight.made)
            busy = done - max(flight.started_ns, self._read_ns)  # before that, the device ran earlier steps
            self._outcomes[flight.launch.step.id] = Rows(flight.launch.step.id, rows, busy)
        self._read_ns = done

    def _fail(self, flight: Flight, error: Exception) -> None:
        """Record a step's failure; its rows skip the steps that were launched after it."""
        flight.error = self._translated(error)
        flight.row_results = flight.read = True
        if flight.given is not None and self._device_steps is not None:
            self._device_steps.forget(flight.given)
        self._failed.update(work.row.request.id for work in flight.launch.work)
        if isinstance(flight.error, DeviceLost):
            self._lost = flight.error

    def _translated(self, error: Exception) -> BackendError:
        if isinstance(error, BackendError):
            return error
        found = self._device.queue.translated(error) or translated(error)
        found.__cause__ = error
        return found


def _plain_row(work: Work, token: int, logprob: float) -> Row:
    request = work.row.request
    if token < 0:
        return Row(request.id, fault=NOT_FINITE)
    return Row(request.id, (token,), (logprob,) if request.want.logprobs else ())
