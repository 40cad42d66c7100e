"""The session of a synchronous device: the contract's hooks over a runner.

A verb only does bookkeeping, so its errors change nothing. A step is computed when it is read or when the next one is launched,
whichever comes first, and always in the order of the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from tgi_core.backend import (
    BackendError,
    Capacity,
    Closed,
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
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.failures import TORCH_ERRORS, translated
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.row_results import row_results
from tgi_core.engine.runner import CountsCompiles, Runner, StepLogits, TakesImages
from tgi_core.engine.speculators.base import Speculator

Reserve = Callable[[WarmupPlan, Progress], Capacity]
"""`Runner.reserve` of a runner whose warm-up takes long enough to report progress."""


class SyncSession(BaseSession):
    """One rank's session over one model, a step at a time."""

    def __init__(
        self,
        runner: Runner,
        shape: ModelShape,
        masks: MaskSource | None,
        adapters: tuple[str, ...] = (),
        kernels: tuple[Kernel, ...] = (),
        speculator: Speculator | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        """`reserve` takes the place of the runner's."""
        super().__init__(runner, shape, masks, adapters, kernels)
        self._launched: LaunchedStep | None = None
        self._speculator, self._reserve = speculator, reserve or self._reserve_at_once
        self._undisturbed: Callable[[], AbstractContextManager[None]] = (
            runner.undisturbed if isinstance(runner, TakesImages) else nullcontext
        )
        if speculator is not None:
            self.declare(proposals=speculator.most)

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Reserve the cache and promise limits. Raises InvalidRequest on a second call or an impossible plan, OutOfMemory."""
        self._check_plan(plan)
        return self._promise(self._reserve(plan, progress))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """The rows of a step; each step is read once. Raises InvalidRequest, or what the step failed with."""
        self._settle()
        return self._taken(step)

    @hookimpl
    def stats(self) -> Stats:
        """Counters since open."""
        return Stats(self._steps, self._compiles(), self._capacity.memory if self._capacity else ())

    @hookimpl
    def close(self) -> Closed:
        """Free everything. Idempotent."""
        self._launched = self._tracker = None
        self._outcomes.clear()
        self._runner.release()
        if self._speculator is not None:
            self._speculator.release()
        return Closed()

    def _reserve_at_once(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        progress("warming up", 0, 1, "step")
        capacity = self._runner.reserve(plan)
        if self._speculator is not None:
            capacity = self._speculator.reserve(plan, capacity)
        progress("warming up", 1, 1, "step")
        return capacity

    def _compiles(self) -> int:
        """Programs compiled so far."""
        if isinstance(self._runner, CountsCompiles):
            return self._runner.compiles
        return self._capacity.compiles if self._capacity else 0

    def _launch(self, launch: LaunchedStep) -> Step:
        self._launched = launch
        return launch.step

    def _make_ready(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """Compute the launched step, if there is one."""
        launch, self._launched = self._launched, None
        if launch is None:
            return
        row_inputs = self._going(launch)
        try:
            outcome: Rows | BackendError = self._compute(launch.step.id, row_inputs)
        except BackendError as error:
            outcome = error
        except TORCH_ERRORS as error:
            outcome = translated(error)
            outcome.__cause__ = error
        self._outcomes[launch.step.id] = outcome

    def _compute(self, step_id: int, row_inputs: list[RowInput]) -> Rows:
        self._steps += 1
        if not row_inputs:
            return Rows(step_id, ())
        with self._undisturbed():
            start = time.perf_counter_ns()
            logits = self._runner.run(row_inputs)
            between = time.perf_counter_ns()
            with torch.inference_mode():
                rows = self._sample(row_inputs, logits)
            return Rows(step_id, rows, between - start, time.perf_counter_ns() - between)

    def _sample(self, row_inputs: list[RowInput], logits: StepLogits) -> tuple[Row, ...]:
        rows = row_results(row_inputs, logits, self._masks)
        for row_input, row in zip(row_inputs, rows, strict=True):
            self._keep(row_input, row)
        return self._with_proposals(row_inputs, rows, logits)

    def _with_proposals(self, row_inputs: list[RowInput], rows: tuple[Row, ...], logits: StepLogits) -> tuple[Row, ...]:
        """Add the speculator's guesses, if any are requested."""
        count = self._capacity.draft if self._capacity else 0
        if self._speculator is None or not count:
            return rows
        guesses = self._speculator.propose(row_inputs, rows, logits, min(count, self._speculator.most))
        return tuple(replace(row, proposed=guesses[row.request_id]) if row.request_id in guesses else row for row in rows)
