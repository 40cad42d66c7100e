"""The session: what the server calls. Two parts of the core do most of it, and may be replaced too:

`Ledger` keeps the books (handles, rows, blocks, and what must be refused), `sampling` is the published formula.
"""

from __future__ import annotations

from collections import deque

from tgi_core.backend import (
    BackendError,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Determinism,
    Feature,
    Grant,
    Handle,
    InvalidRequest,
    Mixing,
    Progress,
    Request,
    Row,
    Rows,
    SamplingField,
    Stats,
    Step,
    TopToken,
    WarmupPlan,
    hookimpl,
    sampling,
)
from tgi_core.backend.ledger import Launch, Ledger, Work
from tgi_core.backend.sampling_checks import check_sampling

from tgi_backend_mydevice.device import Device
from tgi_backend_mydevice.errors import translated


class DeviceSession:
    """One rank, in lock step: a step runs when its rows are read."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._launched: deque[Launch] = deque()
        self._steps = 0
        self._ledger: Ledger | None = None

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare only what runs: the suite asks for all the rest, and wants to see it refused."""
        return Capabilities(
            features=frozenset({Feature.CHUNKED_PREFILL, Feature.LOGPROBS, Feature.PREFIX_REUSE, Feature.TOP_N}),
            sampling=frozenset(SamplingField),
            block_sizes=(4, 16, 64),
            mixing=Mixing.EAGER,
            determinism=Determinism.CORE,
            vocab_size=self._device.vocab_size,
            max_positions=self._device.max_positions,
        )

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """The plan is a wish, None leaves a limit to the device; what is returned is a promise."""
        size, rows = plan.block_size or 16, plan.max_rows or 16
        longest = min(plan.max_row_tokens or 1024, self._device.max_positions)
        num_blocks = plan.num_blocks or rows * -(-longest // size)
        with translated():
            self._device.reserve(num_blocks, size)
        progress("warming up", 1, 1, "step")
        capacity = Capacity(
            groups=(CacheGroup(CacheKind.FULL, size, num_blocks),),
            max_rows=rows,
            max_row_tokens=min(longest, num_blocks * size),
            max_step_tokens=plan.max_step_tokens or 1024,
            max_prefill_rows=rows,
            in_flight=1,  # Replace: 2, once a launched step runs by itself and `rows` only waits for it
            memory=self._device.memory(),
        )
        self._ledger = Ledger(self.capabilities(), capacity)
        return capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """The ledger refuses what must be refused before anything changes."""
        for request in batch:
            check_sampling(request)
        return self._launch(self._book.prefill(batch, cached, grants))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """All rows of the batches go on as one batch."""
        return self._launch(self._book.decode(batches, grants))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """The step's results. An error here ends the rows of this step and no others."""
        if not self._launched or self._launched[0].step != step:
            raise InvalidRequest(f"step {step.id} was read before, or never launched")
        work = self._launched.popleft().work
        try:
            with translated():
                logits = self._device.run(work)
        except BackendError:
            self._book.kill(item.row for item in work)
            raise
        self._steps += 1
        return Rows(step.id, tuple(_row(item, scores) for item, scores in zip(work, logits, strict=True)))

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Bookkeeping only: the device need not hear of it."""
        return self._book.filter(batch, keep)

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """As filter: blocks belong to the server, and are granted anew."""
        return Cleared(self._book.clear(batch))

    @hookimpl
    def stats(self) -> Stats:
        """Counted since open; memory that grows, or compiles after warmup, fail level L3."""
        return Stats(steps=self._steps, memory=self._device.memory())

    @hookimpl
    def close(self) -> Closed:
        """May be called twice."""
        self._launched.clear()
        self._ledger = None
        self._device.close()
        return Closed()

    @property
    def _book(self) -> Ledger:
        if self._ledger is None:
            raise InvalidRequest("the session is not warmed up, or closed")
        return self._ledger

    def _launch(self, launch: Launch) -> Step:
        self._launched.append(launch)  # Replace: start it on the device, and let `rows` wait for it
        return launch.step


def _row(work: Work, logits: sampling.Logits) -> Row:
    """The next token of one row, where its prompt is complete, and what its request wants to know of it."""
    row, want, how = work.row, work.row.request.want, work.row.request.sampling
    if not work.yields:
        return Row(row.request.id)
    # Replace: the same formula on the device, if Python is too slow for your vocabulary.
    logprobs = sampling.distribution(logits, how, row.tokens, row.request.prompt_len)
    token = sampling.choose(logprobs, how, len(row.tokens))
    row.tokens.append(token)  # the ledger's row: the next step finds it there
    likeliest = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))[: want.top_n]
    return Row(
        row.request.id,
        tokens=(token,),
        logprobs=(logprobs[token],) if want.logprobs else (),
        top=(tuple(TopToken(id, logprob) for id, logprob in likeliest),) if want.top_n else (),
    )
