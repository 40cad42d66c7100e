"""The session of an asynchronous device: step N+1 is launched before step N is read (asynchronous scheduling).

A call enqueues its step at once and returns; reading a step waits for that step only. Tokens that the device samples stay there for the
next step, which is enqueued before the host knows them. Rows with masks are sampled there when the next step is launched or theirs is read:
their masks follow from tokens that the host has read by then. Rows that the host samples get their tokens at that time, too; their forward
pass runs meanwhile. Rows with drafts sit out the next step, and get theirs when the step is read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
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
    TopToken,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput
from tgi_core.backend.masking import mask_row
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.ahead.in_flight import InFlightStep
from tgi_core.engine.ahead.self_check import graphs_verdict
from tgi_core.engine.ahead.steps import StepEnqueuer
from tgi_core.engine.ahead.warmup import warm_up
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.failures import TORCH_ERRORS, translated
from tgi_core.engine.row_results import row_results
from tgi_core.engine.sampler import MASKED, NOT_FINITE, UNBOUND

_FAULTS = {-1: NOT_FINITE, -2: UNBOUND, -3: MASKED}
"""By the token that the device samples from processed logits."""

Warm = Callable[[WarmupPlan, Progress], tuple[StepEnqueuer, Capacity]]
"""Makes a session's steps ready, over a cache that it reserves, and promises limits."""


@dataclass(slots=True)
class PendingStep:
    """A launched step that nobody has read. `made` are its rows by request: first those that the host samples, then all."""

    launch: LaunchedStep
    row_inputs: list[RowInput]
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
        warm: Warm | None = None,
    ) -> None:
        """`graphs` says whether decode steps are captured; by default that is tried. `warm` takes the place of `warm_up`."""
        graphs = graphs or graphs_verdict(device, runner)
        super().__init__(runner, device.shape, masks, adapters, (*kernels, graphs))
        self._model, self._device, self._captures = runner, device, not graphs.reason
        self._warm = warm or self._warm_up
        self._device_steps: StepEnqueuer | None = None
        self._pending: deque[PendingStep] = deque()
        self._lost: DeviceLost | None = None
        self._read_ns = 0
        self._masked = masks is not None
        """Whether rows may have masks."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Measure, reserve the cache, capture graphs. Raises InvalidRequest on a second call or an impossible plan, OutOfMemory."""
        self._check_plan(plan)
        try:
            self._device_steps, capacity = self._warm(plan, progress)
        except TORCH_ERRORS as error:
            raise self._translated(error) from error
        return self._promise(capacity)

    def _warm_up(self, plan: WarmupPlan, progress: Progress) -> tuple[StepEnqueuer, Capacity]:
        return warm_up(self._device, self._model, plan, self._captures, progress)

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Waits for the step; each is read once. Raises InvalidRequest, or what the step failed with."""
        while self._pending and self._pending[0].launch.step.id <= step.id:
            self._finish(self._pending[0])
            self._pending.popleft()
        return self._taken(step)

    @hookimpl
    def stats(self) -> Stats:
        """Counters since open; `compiles` are captured steps, all of them made in warmup."""
        steps = self._device_steps
        return Stats(self._steps, 0 if steps is None else steps.compiles, self._capacity.memory if self._capacity else ())

    @hookimpl
    def close(self) -> Closed:
        """Free everything. Idempotent."""
        self._pending.clear()
        self._outcomes.clear()
        if self._device_steps is not None:
            self._device_steps.release()
        self._device_steps = self._tracker = None
        self._runner.release()
        return Closed()

    def _make_ready(self) -> None:
        if self._lost is not None:
            raise DeviceLost(str(self._lost))

    def _launch(self, launch: LaunchedStep) -> Step:
        """Enqueue a step. An error is the step's failure, not the call's: the tracker has changed already."""
        if self._pending:
            self._answer(self._pending[-1])  # its rows continue from the tokens that the host samples
        unread = [pending.launch for pending in self._pending]
        pending = PendingStep(launch, self._going(launch, unread), time.perf_counter_ns())
        self._pending.append(pending)
        self._steps += 1
        if pending.row_inputs and self._device_steps is not None:
            try:
                pending.given = self._device_steps.enqueue(pending.row_inputs, self._open_tracker.live_ids)
            except (BackendError, *TORCH_ERRORS) as error:
                self._fail(pending, error)
        return launch.step

    def _answer(self, pending: PendingStep) -> None:
        """Sample the rows of the host's sampler. Their earlier tokens were sampled here too, before this step was launched."""
        if pending.row_results or pending.given is None:
            return
        pending.row_results = True
        self._mask(pending)
        waiting = pending.given.step.waiting
        answered = [row_input for row_input in waiting if not row_input.drafts]
        self._sample(pending, answered)
        if len(answered) == len(waiting) and not pending.given.step.processed:
            pending.given.logits = pending.given.scores = None

    def _mask(self, pending: PendingStep) -> None:
        """Have the device sample the rows whose masks it waits for. Masks follow from their newest tokens, which are read first: those of
        the step before this one, which the device has finished unless the core has not read it."""
        given = pending.given
        if given is None or not given.masked or given.sample_masked is None or not self._masked:
            return
        for earlier in self._pending:
            if earlier is pending:
                break
            self._read(earlier)
        row_inputs = [row_input for row_input in given.masked if row_input.row.request.id not in self._failed]
        if not row_inputs:
            return
        try:
            given.sample_masked(row_inputs, self._filled(row_inputs, 4 * -(-self._shape.vocab_size // 32) * len(row_inputs)))
        except (BackendError, *TORCH_ERRORS) as error:
            self._fail(pending, error)

    def _filled(self, row_inputs: Sequence[RowInput], size: int) -> bytes:
        """The masks of rows, in so many bytes: where there are none of that size, they allow nothing."""
        packed = b"" if self._masks is None else self._masks.fill(tuple([mask_row(row_input.row) for row_input in row_inputs]))
        return packed if len(packed) == size else bytes(size)

    def _verify(self, pending: PendingStep) -> None:
        """Sample the rows with drafts, whose earlier tokens have been read."""
        if pending.given is not None and pending.error is None:
            self._sample(pending, [row_input for row_input in pending.given.step.waiting if row_input.drafts])
            pending.given.logits = None

    def _sample(self, pending: PendingStep, waiting: Sequence[RowInput]) -> None:
        """Wait for the logits of rows that the host samples, and sample them."""
        given = pending.given
        row_inputs = [row_input for row_input in waiting if row_input.row.request.id not in self._failed]
        if given is None or not row_inputs:
            return

        @torch.inference_mode()
        def choose() -> tuple[Row, ...]:
            return row_results(row_inputs, given.held(row_inputs), self._masks)

        try:
            given.wait()
            rows = self._chosen(row_inputs, choose)
        except (BackendError, *TORCH_ERRORS) as error:
            self._fail(pending, error)
            return
        self._note(pending, row_inputs, rows)

    def _chosen(self, row_inputs: Sequence[RowInput], choose: Callable[[], tuple[Row, ...]]) -> tuple[Row, ...]:
        """What `choose` samples for rows."""
        return self._device.now(choose)

    def _read(self, pending: PendingStep) -> None:
        """Read the tokens that the device sampled."""
        if pending.read or pending.given is None:
            return
        pending.read = True
        try:
            tokens, logprobs = pending.given.read()
            processed = [(rows.row_inputs, *rows.read()) for rows in pending.given.processed]
        except (BackendError, *TORCH_ERRORS) as error:
            self._fail(pending, error)
            return
        for each in processed:
            self._note_processed(pending, *each)
        made, failed = pending.made, self._failed
        for row_input, token, logprob in zip(pending.given.step.plain, tokens, logprobs, strict=True):
            row = row_input.row
            request = row.request
            id = request.id
            if id in failed:
                continue
            if token < 0:
                made[id] = Row(id, fault=NOT_FINITE)
                failed.add(id)
            else:
                made[id] = Row(id, (token,), (logprob,) if request.want.logprobs else ())
                row.tokens.append(token)

    def _note_processed(
        self,
        pending: PendingStep,
        row_inputs: Sequence[RowInput],
        tokens: list[int],
        logprobs: list[float],
        top: list[tuple[TopToken, ...]],
    ) -> None:
        """Record rows that the device sampled from processed logits."""
        made, failed = pending.made, self._failed
        for row_input, token, logprob, likeliest in zip(row_inputs, tokens, logprobs, top, strict=True):
            row = row_input.row
            id, want = row.request.id, row.request.want
            if id in failed:
                continue
            if token < 0:
                made[id] = Row(id, fault=_FAULTS[token])
                failed.add(id)
            else:
                made[id] = Row(id, (token,), (logprob,) if want.logprobs else (), (likeliest,) if want.top_n else ())
                row.tokens.append(token)

    def _note(self, pending: PendingStep, row_inputs: Sequence[RowInput], rows: Sequence[Row]) -> None:
        """Record the step's rows, except for rows that failed before."""
        for row_input, row in zip(row_inputs, rows, strict=True):
            if row.request_id not in self._failed:
                pending.made[row.request_id] = row
                self._keep(row_input, row)

    def _finish(self, pending: PendingStep) -> None:
        """Finish a step: record its rows, or its failure and that of everything derived from it."""
        self._answer(pending)
        self._verify(pending)
        self._read(pending)
        done = time.perf_counter_ns()
        if pending.error is not None:
            self._outcomes[pending.launch.step.id] = pending.error
        else:
            made, failed = pending.made, self._failed
            ids = [row_input.row.request.id for row_input in pending.row_inputs]
            if len(made) < len(ids):  # some prompts are not complete
                made.update({id: Row(id) for id in ids if id not in made and id not in failed})
            rows = tuple([made[id] for id in ids if id in made])
            busy = done - max(pending.started_ns, self._read_ns)  # before that, the device ran earlier steps
            self._outcomes[pending.launch.step.id] = Rows(pending.launch.step.id, rows, busy)
        self._read_ns = done

    def _fail(self, pending: PendingStep, error: Exception) -> None:
        """Record a step's failure; its rows skip the steps that were launched after it."""
        pending.error = self._translated(error)
        pending.row_results = pending.read = True
        if pending.given is not None and self._device_steps is not None:
            self._device_steps.forget(pending.given)
        self._failed.update(row_input.row.request.id for row_input in pending.launch.row_inputs)
        if isinstance(pending.error, DeviceLost):
            self._lost = pending.error

    def _translated(self, error: Exception) -> BackendError:
        if isinstance(error, BackendError):
            return error
        found = self._device.queue.translated(error) or translated(error)
        found.__cause__ = error
        return found
