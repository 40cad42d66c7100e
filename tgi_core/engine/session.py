"""The session: the contract's hooks over a runner.

A verb only does bookkeeping, so its errors change nothing. A step is computed when it is read or when the next one is launched,
whichever comes first, and always in the order of the calls.
"""

from __future__ import annotations

import logging
import time

import torch

from tgi_core.backend import (
    BackendError,
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Determinism,
    Feature,
    Grant,
    Handle,
    InvalidRequest,
    Kernel,
    MaskSource,
    Mixing,
    OutOfMemory,
    Progress,
    Request,
    Row,
    Rows,
    SamplingField,
    Stats,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.ledger import Launch, Ledger, LiveRow, Work
from tgi_core.backend.sampling_checks import check_sampling
from tgi_core.engine.failures import FOREIGN, translated
from tgi_core.engine.masks import allowed_tokens
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.runner import Runner, StepLogits, prompt_positions
from tgi_core.engine.sampler import prompt_logprobs, sample, sample_each

_log = logging.getLogger(__name__)

_FEATURES = frozenset({Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TENSOR_PARALLEL, Feature.TOP_N})
"""Of every session here. A model that cannot be divided refuses its group of ranks when it is opened."""


class EngineSession:
    """One rank's session over one model."""

    def __init__(
        self,
        runner: Runner,
        shape: ModelShape,
        masks: MaskSource | None,
        adapters: tuple[str, ...] = (),
        kernels: tuple[Kernel, ...] = (),
    ) -> None:
        self._runner, self._shape, self._masks = runner, shape, masks
        self._capabilities = Capabilities(
            features=_FEATURES | runner.features | _features_of(masks, adapters),
            sampling=frozenset(SamplingField),
            block_sizes=runner.block_sizes,
            mixing=Mixing.EAGER,
            determinism=Determinism.CORE,
            vocab_size=shape.vocab_size,
            max_positions=shape.max_positions,
            adapters=adapters,
            kernels=kernels + runner.kernels,
        )
        self._capacity: Capacity | None = None
        self._ledger: Ledger | None = None
        self._launched: Launch | None = None
        self._outcomes: dict[int, Rows | BackendError] = {}
        self._failed: set[int] = set()
        self._steps = 0

    @hookimpl
    def capabilities(self) -> Capabilities:
        """What this session can do."""
        return self._capabilities

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Reserve the cache and promise limits. Raises InvalidRequest on a second call or an impossible plan, OutOfMemory."""
        if self._capacity is not None:
            raise InvalidRequest("the session is warmed up already")
        if plan.block_size is not None and plan.block_size not in self._capabilities.block_sizes:
            raise InvalidRequest(f"block size {plan.block_size} is not among {self._capabilities.block_sizes}")
        progress("warming up", 0, 1, "step")
        self._capacity = self._runner.reserve(plan)
        self._ledger = Ledger(self._capabilities, self._capacity)
        progress("warming up", 1, 1, "step")
        return self._capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start new requests beside a live batch."""
        self._settle()
        for request in batch:
            check_sampling(request)
        return self._launch(self._book.prefill(batch, cached, grants))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Go on with live batches, merged into one."""
        self._settle()
        return self._launch(self._book.decode(batches, grants))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """The rows of a step; each step is read once. Raises InvalidRequest, or what the step failed with."""
        self._settle()
        outcome = self._outcomes.pop(step.id, None)
        if outcome is None:
            raise InvalidRequest(f"step {step.id} was read before, or never launched")
        self._outcomes = {id: item for id, item in self._outcomes.items() if id > step.id}  # older ones are not read any more
        if isinstance(outcome, BackendError):
            raise outcome
        return outcome

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep the named rows, in the order of the batch."""
        return self._book.filter(batch, keep)

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop one batch, or all."""
        return Cleared(self._book.clear(batch))

    @hookimpl
    def stats(self) -> Stats:
        """Counters since open."""
        return Stats(self._steps, 0, self._capacity.memory if self._capacity else ())

    @hookimpl
    def close(self) -> Closed:
        """Give everything back. Idempotent."""
        self._launched = self._ledger = None
        self._outcomes.clear()
        self._runner.release()
        return Closed()

    @property
    def runner(self) -> Runner:
        """What runs the model."""
        return self._runner

    @property
    def _book(self) -> Ledger:
        if self._ledger is None:
            raise InvalidRequest("the session is not warmed up, or closed")
        return self._ledger

    def _launch(self, launch: Launch) -> Step:
        self._launched = launch
        return launch.step

    def _settle(self) -> None:
        """Compute the launched step, if one waits."""
        launch, self._launched = self._launched, None
        if launch is None:
            return
        # A row that failed sits out every step until the core filters it away, and those launched before that.
        self._failed &= self._book.live_ids | {work.row.request.id for work in launch.work} if self._failed else set()
        works = [work for work in launch.work if work.row.request.id not in self._failed]
        try:
            outcome: Rows | BackendError = self._compute(launch.step.id, works)
        except BackendError as error:
            outcome = error
        except FOREIGN as error:
            outcome = translated(error)
            outcome.__cause__ = error
        self._outcomes[launch.step.id] = outcome
        if isinstance(outcome, BackendError):
            self._book.kill(work.row for work in launch.work)

    def _compute(self, step_id: int, works: list[Work]) -> Rows:
        self._steps += 1
        if not works:
            return Rows(step_id, ())
        start = time.perf_counter_ns()
        logits = self._runner.run(works)
        between = time.perf_counter_ns()
        with torch.inference_mode():
            rows = self._sample(works, logits)
        return Rows(step_id, rows, between - start, time.perf_counter_ns() - between)

    def _sample(self, works: list[Work], logits: StepLogits) -> tuple[Row, ...]:
        yielding = [work.row for work in works if work.yields]
        masked = [row.request.masked for row in yielding]
        allowed = allowed_tokens(self._masks, yielding, logits.last.shape) if self._masks and any(masked) else None
        try:
            sampled = sample(logits.last, yielding, allowed, logits.reader)
        except FOREIGN as error:
            if isinstance(translated(error), OutOfMemory):
                raise
            _log.exception("choosing tokens failed; each row by itself")
            sampled = sample_each(logits.last, yielding, allowed)
        places = {row.request.id: index for index, row in enumerate(yielding)}
        rows = []
        for work in works:
            prompt = _prompt_logprobs(work, logits)
            place = places.get(work.row.request.id)
            row = Row(work.row.request.id, prompt_logprobs=prompt) if place is None else sampled.result(place, work.row, prompt)
            self._keep(work.row, row)
            rows.append(row)
        return tuple(rows)

    def _keep(self, live: LiveRow, row: Row) -> None:
        live.tokens.extend(row.tokens)
        if row.fault is not None:
            self._failed.add(row.request_id)


def _features_of(masks: MaskSource | None, adapters: tuple[str, ...]) -> frozenset[Feature]:
    """Those that depend on what the session was opened with."""
    return frozenset({Feature.MASKS} if masks else ()) | frozenset({Feature.LORA} if adapters else ())


def _prompt_logprobs(work: Work, logits: StepLogits) -> tuple[float | None, ...]:
    """Those of the positions run in this step, with the leading None of token 0."""
    if not work.row.request.want.prompt_logprobs or work.start >= work.row.request.prompt_len:
        return ()
    first: tuple[float | None, ...] = (None,) if work.start == 0 else ()
    count = prompt_positions(work)
    if not count:
        return first
    following = work.row.tokens[work.start + 1 : work.start + 1 + count]
    return (*first, *prompt_logprobs(logits.prompt[work.row.request.id], following))
