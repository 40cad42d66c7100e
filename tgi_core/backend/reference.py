"""The reference backend: a deterministic toy language model without torch that follows every rule of the contract.

Its cache is real: each position's slot holds a state derived from earlier slots, and tokens depend only on slots, so a block
granted to two rows, or too early, changes the text. It is asynchronous by default: a step is computed when its rows are read, so
results and errors arrive late, as on an accelerator. Selected only by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from tgi_core.backend import sampling
from tgi_core.backend.batch_tracker import BatchTracker, LaunchedStep, RowInput, RowState
from tgi_core.backend.callbacks import MaskSource, Progress
from tgi_core.backend.drafts import verified
from tgi_core.backend.errors import BackendError, InvalidModel, InvalidRequest, Unsupported
from tgi_core.backend.masking import allowed_tokens
from tgi_core.backend.sampling_checks import check_sampling
from tgi_core.backend.spec import hookimpl
from tgi_core.backend.types import (
    API_VERSION,
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
    Manifest,
    Memory,
    Mixing,
    OpenOptions,
    Probe,
    ProbeStatus,
    Request,
    Row,
    RowFault,
    RowFaultKind,
    Rows,
    Stats,
    Step,
    TopToken,
    WarmupPlan,
)
from tgi_core.errors import StartupError
from tgi_core.model_files import text_config
from tgi_core.model_sizes import read_sizes

_WORD = 0xFFFFFFFFFFFFFFFF
_CANDIDATES = 8
PROPOSALS = 8
"""Tokens that a row proposes if a speculator is requested: the toy model is its own speculator."""
_FEATURES = frozenset(
    {
        Feature.BATCH_INVARIANT,
        Feature.CHUNKED_PREFILL,
        Feature.LOGPROBS,
        Feature.PREFIX_REUSE,
        Feature.PROMPT_LOGPROBS,
        Feature.SPECULATION,
        Feature.TOP_N,
    }
)


@hookimpl
def backend_manifest() -> Manifest:
    """Manifest of the reference backend, which is built against this package's contract."""
    return Manifest("reference", "tgi-core", "1.0", API_VERSION, (1, 0), device_kind="none")


@hookimpl
def backend_probe() -> Probe:
    """Always READY: the backend needs no device."""
    return Probe(ProbeStatus.READY, devices=("toy model",), reason="for tests; selected only by name")


@hookimpl
def backend_open(options: OpenOptions) -> ReferenceSession:
    """Open a session. Reads only vocabulary size and context length from config.json. Raises InvalidModel, Unsupported."""
    if options.group.world != 1:
        raise Unsupported(f"a group of {options.group.world} ranks: the toy model runs on one")
    try:
        config = text_config(read_sizes(Path(options.model)))
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    vocab_size, max_positions = config.get("vocab_size", 256), config.get("max_position_embeddings", 2048)
    if type(vocab_size) is not int or type(max_positions) is not int or max_positions < 1:
        raise InvalidModel(f"{options.model}/config.json: vocab_size and max_position_embeddings must be numbers above 0")
    adapters = tuple(adapter.name for adapter in options.adapters)
    proposals = PROPOSALS if options.speculator else 0
    return ReferenceSession(vocab_size, max_positions, masks=options.masks, adapters=adapters, proposals=proposals)


def mix(value: int) -> int:
    """Hash 64 bits (the finalizer of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def toy_logits(state: int, vocab_size: int, others: Sequence[int] = ()) -> dict[int, float]:
    """Logits for a 64-bit state: a few likely tokens, plus unlikely `others`, since a mask may exclude all likely tokens."""
    unlikely = {id: (mix(state ^ id) >> 40) / 2**22 - 20 for id in others}
    return unlikely | _likely(state, vocab_size)


@lru_cache(maxsize=4096)
def _likely(state: int, vocab_size: int) -> dict[int, float]:
    logits: dict[int, float] = {}
    for rank in range(min(_CANDIDATES, vocab_size)):
        state = mix(state)
        logits.setdefault(state % vocab_size, -0.5 * rank + (state >> 40) / 2**25)
    return logits


@lru_cache(maxsize=4096)
def _likely_logprobs(state: int, vocab_size: int) -> dict[int, float]:
    return sampling.log_softmax(_likely(state, vocab_size))


class ReferenceSession:
    """One rank of the toy model. `faults` maps a step id to the error that reading it raises."""

    def __init__(
        self,
        vocab_size: int = 256,
        max_positions: int = 2048,
        *,
        asynchronous: bool = True,
        faults: Mapping[int, BackendError] | None = None,
        on_step: Callable[[tuple[RowInput, ...]], None] | None = None,
        masks: MaskSource | None = None,
        adapters: tuple[str, ...] = (),
        proposals: int = 0,
    ) -> None:
        self._vocab_size, self._max_positions, self._proposals = vocab_size, max_positions, proposals
        self._asynchronous = asynchronous
        self._faults = dict(faults or {})
        self._on_step = on_step
        self._masks, self._adapters = masks, adapters
        self._failed: set[int] = set()
        self._launched: deque[LaunchedStep] = deque()
        self._done: dict[int, Rows | BackendError] = {}
        self._slots: list[int] = []
        self._block_size, self._steps, self._proposed_most = 16, 0, 0
        self._tracker: BatchTracker | None = None

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Everything except media; MASKS only with a mask source, LORA only with adapters."""
        return Capabilities(
            features=_FEATURES | ({Feature.MASKS} if self._masks else set()) | ({Feature.LORA} if self._adapters else set()),
            sampling=sampling.FIELDS,
            block_sizes=(16, 1, 4, 64),
            mixing=Mixing.EAGER,
            determinism=Determinism.CORE,
            vocab_size=self._vocab_size,
            max_positions=self._max_positions,
            adapters=self._adapters,
            proposals=self._proposals,
        )

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Accept the plan as given, with modest defaults."""
        self._block_size = plan.block_size or 16
        num_blocks = plan.num_blocks or 4096
        self._slots = [0] * ((num_blocks + 1) * self._block_size)
        capacity = Capacity(
            groups=self._groups(num_blocks),
            max_rows=plan.max_rows or 128,
            max_row_tokens=min(plan.max_row_tokens or self._max_positions, num_blocks * self._block_size),
            max_step_tokens=plan.max_step_tokens or 2048,
            max_prefill_rows=plan.max_rows or 128,
            in_flight=2 if self._asynchronous else 1,
            draft=plan.draft,
            memory=(Memory("kv cache", 8 * len(self._slots)),),
        )
        self._tracker = BatchTracker(self.capabilities(), capacity)
        self._proposed_most = min(self._proposals, capacity.draft)
        progress("warming up", 1, 1, "step")
        return capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Only bookkeeping; tokens are computed when the step is read."""
        for request in batch:
            check_sampling(request)
        return self._start(self._open_tracker.prefill(batch, cached, grants))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Only bookkeeping; tokens are computed when the step is read."""
        return self._start(self._open_tracker.decode(batches, grants))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Compute every launched step up to this one, in order."""
        while step.id not in self._done:
            if not self._launched or self._launched[0].step.id > step.id:
                raise InvalidRequest(f"step {step.id} was read before, or never launched")
            self._compute(self._launched.popleft())
        self._done = {id: outcome for id, outcome in self._done.items() if id >= step.id}  # older steps will not be read
        outcome = self._done.pop(step.id)
        if isinstance(outcome, BackendError):
            self._open_tracker.kill(step)
            raise outcome
        return outcome

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep some rows. Steps launched earlier still return results for removed rows, which the core ignores."""
        return self._open_tracker.filter(batch, keep)

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop rows. Slots keep their stale states, as device memory does."""
        return Cleared(self._open_tracker.clear(batch))

    @hookimpl
    def stats(self) -> Stats:
        """Number of steps computed so far, and the size of the cache."""
        return Stats(steps=self._steps, memory=(Memory("kv cache", 8 * len(self._slots)),))

    @hookimpl
    def close(self) -> Closed:
        """Discard all state."""
        self._launched.clear()
        self._done.clear()
        self._slots, self._tracker = [], None
        return Closed()

    @property
    def idle(self) -> bool:
        """Whether no row is live and no step is unread."""
        return not (self._done or self._open_tracker.live_ids)

    @property
    def _open_tracker(self) -> BatchTracker:
        if self._tracker is None:
            raise InvalidRequest("the session is not warmed up, or closed")
        return self._tracker

    def _groups(self, num_blocks: int) -> tuple[CacheGroup, ...]:
        return (CacheGroup(CacheKind.FULL, self._block_size, num_blocks),)

    def _start(self, launch: LaunchedStep) -> Step:
        self._launched.append(launch)
        if not self._asynchronous:
            self._compute(self._launched.popleft())
        return launch.step

    def _compute(self, launch: LaunchedStep) -> None:
        if self._on_step is not None:
            self._on_step(launch.row_inputs)
        self._steps += 1
        row_inputs = [row_input for row_input in launch.row_inputs if row_input.row.request.id not in self._failed]
        try:
            outcome: Rows | BackendError = Rows(launch.step.id, tuple(self._run(row_input) for row_input in row_inputs))
        except BackendError as error:
            outcome = error
        self._done[launch.step.id] = outcome = self._faults.pop(launch.step.id, outcome)
        if isinstance(outcome, BackendError):
            # steps derived from this one may be launched already
            self._failed.update(row_input.row.request.id for row_input in launch.row_inputs)
        if self._failed:  # skipped until the core filters them out
            self._failed &= self._open_tracker.live_ids | {
                row_input.row.request.id for late in self._launched for row_input in late.row_inputs
            }

    def _run(self, row_input: RowInput) -> Row:
        row, prompt_logprobs = row_input.row, list[float | None]()
        wants_prompt = row.request.want.prompt_logprobs
        if wants_prompt and row_input.start == 0:
            prompt_logprobs.append(None)
        state = 0
        for position in range(row_input.start, row_input.start + row_input.take - len(row_input.drafts)):
            state = self._write(row, position)
            if wants_prompt and position + 1 < row.request.prompt_len:
                logprobs = _likely_logprobs(state, self._vocab_size)
                prompt_logprobs.append(logprobs.get(row.tokens[position + 1], float("-inf")))
        if row_input.drafts:
            made = self._verify(row_input, [state, *self._write_drafts(row_input)])
        else:
            row_result: dict[str, Any] = self._sample(row_input, state) if row_input.yields else {}
            made = Row(row.request.id, prompt_logprobs=tuple(prompt_logprobs), **row_result)
        return self._with_proposals(row, made) if row_input.propose else made

    def _with_proposals(self, row: RowState, made: Row) -> Row:
        wanted = self._proposed_most and made.tokens and made.fault is None
        return replace(made, proposed=self._propose(row, self._proposed_most)) if wanted else made

    def _propose(self, row: RowState, count: int) -> tuple[int, ...]:
        """The next tokens of a greedy row without penalties or mask: the likeliest token at each state. Writes nothing."""
        tokens, table, states = list(row.tokens), row.tables[0], dict[int, int]()

        def state(position: int) -> int:
            return states[position] if position in states else self._slots[self._slot(table, position)]

        for position in range(len(tokens) - 1, len(tokens) - 1 + count):
            states[position] = mix(state(position - 1) ^ mix(state(position // 2) ^ tokens[position]))
            logits = toy_logits(states[position], self._vocab_size)
            tokens.append(min(logits, key=lambda token: (-logits[token], token)))
        return tuple(tokens[len(row.tokens) :])

    def _write_drafts(self, row_input: RowInput) -> list[int]:
        """Compute the states of positions whose tokens are guesses."""
        row, known = row_input.row, len(row_input.row.tokens)
        row.tokens += row_input.drafts
        states = [self._write(row, position) for position in range(known, len(row.tokens))]
        del row.tokens[known:]
        return states

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        """Sample at the state of the newest token, and at those of its drafts."""
        return verified(
            row_input, states, lambda row_input, state: Row(row_input.row.request.id, **self._sample(row_input, state))
        )

    def _write(self, row: RowState, position: int) -> int:
        """Compute and store a position's state from the previous slot and one far back; the first from the adapter's name."""
        table, slots = row.tables[0], self._slots
        if position:
            before, far = slots[self._slot(table, position - 1)], slots[self._slot(table, position // 2)]
        else:
            before, far = crc32((row.request.adapter or "").encode()), 0
        state = mix(before ^ mix(far ^ row.tokens[position]))
        slots[self._slot(table, position)] = state
        return state

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row, want, how = row_input.row, row_input.row.request.want, row_input.row.request.sampling
        allowed = allowed_tokens(self._masks, row, self._vocab_size)
        if allowed == []:
            self._failed.add(row.request.id)
            return {"fault": RowFault(RowFaultKind.MASK, "the mask allows no token")}
        logits = toy_logits(state, self._vocab_size, allowed or ())
        try:
            logprobs = sampling.distribution(
                logits, how, row.tokens, row.request.prompt_len, allowed and set(allowed), self._vocab_size
            )
            token = sampling.choose(logprobs, how, len(row.tokens))
        except (ArithmeticError, ValueError) as error:
            self._failed.add(row.request.id)
            return {"fault": RowFault(RowFaultKind.SAMPLER, f"choosing its token failed: {type(error).__name__}")}
        row.tokens.append(token)
        top = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))[: want.top_n] if want.top_n else ()
        return {
            "tokens": (token,),
            "logprobs": (logprobs[token],) if want.logprobs else (),
            "top": (tuple(TopToken(id, logprob) for id, logprob in top),) if want.top_n else (),
        }
