"""Device-independent bookkeeping that the contract requires of every session: handles, rows, takes and block tables.

A `BatchTracker` validates a verb completely before it changes anything, so a verb that raises leaves the state unchanged. A step verb
returns the row inputs to run, in batch order. Backends may use a `BatchTracker` or do their own bookkeeping.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from tgi_core.backend.errors import CapacityExceeded, InvalidRequest, UnknownBatch, UnknownRequest, Unsupported
from tgi_core.backend.sampling_spec import needed_fields
from tgi_core.backend.types import (
    EMPTY,
    NULL_BLOCK,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    Feature,
    Grant,
    Handle,
    Mixing,
    Request,
    Step,
)


@dataclass(slots=True, eq=False)
class RowState:
    """A live request. The backend appends sampled tokens to `tokens`, or passes them to `accept` where the row ran drafts; `computed`
    counts positions that are in launched steps.

    A WINDOW group's table still has the blocks that the row no longer sees. They may be other rows' by now: a step from position `start` on
    must not read the first `CacheGroup.unseen(start)` of them."""

    request: Request
    tokens: list[int]
    computed: int
    tables: tuple[list[int], ...]
    drafting: bool = False
    """Whether a launched step ran its drafts, and `accept` has not been called for that step yet."""
    draft_start: int = 0
    """The first position of that step."""
    steps_left: int = 0
    """For how many more tokens a decode step without a grant is known to be valid: its blocks and the limits cover that many positions."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append the tokens of a step that ran drafts. Positions of drafts that are not among them will be written again."""
        self.tokens.extend(tokens)
        self.computed, self.drafting, self.steps_left = len(self.tokens) - 1, False, 0

    @property
    def next_start(self) -> int:
        """The first position of the row's next step, or one before it while that depends on drafts."""
        return self.draft_start if self.drafting else self.computed

    @property
    def prompt_left(self) -> int:
        """Number of the request's own tokens that no step has taken yet."""
        return max(0, len(self.request.tokens) - self.computed)


@dataclass(slots=True)
class RowInput:
    """One row's part of a step: positions start…start + take - 1. `yields` is true if the row samples a new token. `drafts` are the
    tokens of the last positions, which the row does not have yet. `propose`: whether the row should propose what follows."""

    row: RowState
    start: int
    take: int
    yields: bool
    drafts: tuple[int, ...] = ()
    propose: bool = True

    @property
    def tokens(self) -> list[int]:
        """The tokens at its positions, as far as the host knows them."""
        known = self.row.tokens[self.start : self.start + self.take - len(self.drafts)]
        return [*known, *self.drafts] if self.drafts else known


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """An accepted step verb."""

    step: Step
    row_inputs: tuple[RowInput, ...]


@dataclass(slots=True)
class _Plan:
    row: RowState
    take: int
    blocks: tuple[tuple[int, ...], ...]
    drafts: tuple[int, ...] = ()
    propose: bool = True


class BatchTracker:
    """Rows and handles of one session.

    The scheduler and the model server keep their own records. A session needs a tracker to validate its arguments: the contract
    defines which calls it must reject, independent of the caller.
    """

    def __init__(self, capabilities: Capabilities, capacity: Capacity) -> None:
        self._capabilities = capabilities
        self._capacity = capacity
        self._batches: dict[Handle, list[RowState]] = {}
        self._origins: dict[Handle, frozenset[int]] = {}
        """Steps, possibly unread, that each batch is derived from."""
        self._unread: deque[LaunchedStep] = deque(maxlen=capacity.in_flight)
        self._live: set[int] = set()
        self._handles = itertools.count(1)
        self._steps = itertools.count(1)

    @property
    def live_ids(self) -> Set[int]:
        """Request ids of the rows in live batches."""
        return self._live

    def prefill(self, batch: Sequence[Request], cached: Handle, grants: Sequence[Grant]) -> LaunchedStep:
        """Admit requests and continue `cached` in the same step. Raises as `SessionSpec.prefill` does."""
        if not batch:
            raise InvalidRequest("prefill needs at least one request")
        if cached != EMPTY and self._capabilities.mixing is Mixing.NONE:
            raise Unsupported("this session does not mix prefill and decode in one step")
        running = self._rows(cached) if cached != EMPTY else []
        for request in batch:
            self._check(request)
        if len({request.id for request in batch}) != len(batch):
            raise InvalidRequest("a request id appears twice")
        if len(self._live) + len(batch) > self._capacity.max_rows:
            raise CapacityExceeded(f"{len(self._live)} + {len(batch)} rows exceed max_rows {self._capacity.max_rows}")
        fresh = [_Plan(RowState(r, list(r.tokens), r.cached, tuple([] for _ in r.blocks)), r.take, r.blocks) for r in batch]
        rows = running + [plan.row for plan in fresh]
        launch = self._launch([cached] if cached != EMPTY else [], rows, [*self._plans(running, grants), *fresh])
        self._live.update([request.id for request in batch])
        return launch

    def decode(self, batches: Sequence[Handle], grants: Sequence[Grant]) -> LaunchedStep:
        """Merge distinct batches and continue them. Raises as `SessionSpec.decode` does."""
        if not batches or len(set(batches)) != len(batches):
            raise InvalidRequest("decode needs one or more distinct batches")
        rows = [row for handle in batches for row in self._rows(handle)]
        return self._launch(batches, rows, self._plans(rows, grants))

    def filter(self, batch: Handle, keep: Sequence[int]) -> Handle:
        """Keep only the rows in `keep`. Raises UnknownBatch, UnknownRequest."""
        rows, origins = self._rows(batch), self._origins[batch]
        wanted = set(keep)
        if missing := wanted - {row.request.id for row in rows}:
            raise UnknownRequest(f"batch {batch.id} has no request {min(missing)}", request_ids=tuple(sorted(missing)))
        self._drop(batch)
        return self._hold([row for row in rows if row.request.id in wanted], origins)

    def clear(self, batch: Handle | None) -> int:
        """Drop one batch, or all for None, and return the number of rows dropped. Raises UnknownBatch."""
        if batch is None:
            return sum(self._drop(handle) for handle in list(self._batches))
        self._rows(batch)
        return self._drop(batch)

    def read(self, step: Step) -> LaunchedStep:
        """Return the launch of a step about to be read and discard earlier unread launches.

        For sessions that do not track launches themselves. Raises InvalidRequest for a step that was read before or never launched.
        """
        while self._unread and self._unread[0].step.id < step.id:
            self._unread.popleft()
        if not self._unread or self._unread[0].step != step:
            raise InvalidRequest(f"step {step.id} was read before, or never launched")
        return self._unread.popleft()

    def kill(self, step: Step) -> None:
        """Drop the batch of a step that failed on reading, and every batch derived from it."""
        for handle, origins in list(self._origins.items()):
            if step.id in origins:
                self._drop(handle)

    def _rows(self, handle: Handle) -> list[RowState]:
        if handle not in self._batches:
            raise UnknownBatch(f"no live batch has handle {handle.id}")
        return self._batches[handle]

    def _drop(self, handle: Handle) -> int:
        rows = self._batches.pop(handle)
        del self._origins[handle]
        self._live.difference_update([row.request.id for row in rows])
        return len(rows)

    def _hold(self, rows: list[RowState], origins: frozenset[int]) -> Handle:
        if not rows:
            return EMPTY
        handle = Handle(next(self._handles))
        self._batches[handle], self._origins[handle] = rows, origins
        self._live.update([row.request.id for row in rows])
        return handle

    def _plans(self, rows: Iterable[RowState], grants: Sequence[Grant]) -> list[_Plan | bool]:
        """By row, what it runs; only whether it proposes for a decode step within `RowState.steps_left`, which needs no check."""
        granted = {grant.request_id: grant for grant in grants}
        if len(granted) != len(grants):
            raise InvalidRequest("two grants name the same request")
        plans: list[_Plan | bool] = []
        for row in rows:
            grant = granted.pop(row.request.id, None) if granted else None
            if grant is None:
                plans.append(row.steps_left > 0 or _Plan(row, 0 if row.prompt_left else 1, ()))
            elif grant.take == 1 and row.steps_left > 0 and not (grant.drafts or grant.blocks):
                plans.append(grant.propose)
            else:
                plans.append(_Plan(row, grant.take, grant.blocks, grant.drafts, grant.propose))
        if granted:
            raise UnknownRequest(f"a grant names request {min(granted)}, which is in no batch of this step")
        return plans

    def _launch(self, old: Sequence[Handle], rows: list[RowState], plans: Sequence[_Plan | bool]) -> LaunchedStep:
        unknown = [plan for plan in plans if isinstance(plan, _Plan)]
        for plan in unknown:
            self._check_plan(plan)
        self._check_step(len(plans) - len(unknown), unknown)
        step = next(self._steps)
        unread = {launch.step.id for launch in self._unread}
        origins = {origin for handle in old for origin in self._origins[handle] if origin in unread}
        for handle in old:  # its rows stay live
            del self._batches[handle], self._origins[handle]
        handle = Handle(next(self._handles))
        self._batches[handle], self._origins[handle] = rows, frozenset({*origins, step})
        row_inputs = [
            self._apply(plan) if isinstance(plan, _Plan) else _advance(row, plan) for row, plan in zip(rows, plans, strict=True)
        ]
        if not all(plan.take for plan in unknown):
            row_inputs = [item for item in row_inputs if item.take]
        launch = LaunchedStep(Step(step, handle), tuple(row_inputs))
        self._unread.append(launch)
        return launch

    def _apply(self, plan: _Plan) -> RowInput:
        row, start = plan.row, plan.row.computed
        for table, blocks in zip(row.tables, plan.blocks, strict=False):
            table.extend(blocks)
        row.computed += plan.take
        if plan.drafts:
            row.drafting, row.draft_start = True, start
        row.steps_left = 0 if row.drafting or row.prompt_left else self._covered(row) - row.computed
        return RowInput(row, start, plan.take, bool(plan.take) and row.prompt_left == 0, plan.drafts, plan.propose)

    def _covered(self, row: RowState) -> int:
        """The positions that a row may have with the blocks it has."""
        found = self._capacity.max_row_tokens
        for group, table in zip(self._capacity.groups, row.tables, strict=True):
            if group.kind is CacheKind.CROSS:
                return 0  # limits prompt and answer apart: see `_check_cover`
            found = min(found, len(table) * group.block_size)
        return found

    def _check(self, request: Request) -> None:
        """Validate one request on its own."""
        length = len(request.tokens)
        wrong = (
            (request.id in self._live, "its id is already live"),
            (not 0 <= request.cached < length, f"cached {request.cached} must be from 0 to {length - 1}"),
            (not 0 < request.take <= length - request.cached, f"take {request.take} does not fit its tokens"),
            (not 0 <= request.prompt_len <= length, f"prompt_len {request.prompt_len} exceeds its {length} tokens"),
            (len(request.blocks) != len(self._capacity.groups), "it needs one block tuple per cache group"),
            (
                length > 0 and not 0 <= min(request.tokens) <= max(request.tokens) < self._capabilities.vocab_size,
                f"token ids must be from 0 to {self._capabilities.vocab_size - 1}",
            ),
            (
                not all(0 <= token < self._capabilities.vocab_size for token, _ in request.sampling.logit_bias),
                "logit_bias names a token outside the vocabulary",
            ),
        )
        _refuse_first(request.id, wrong)
        if length > self._capacity.max_row_tokens:
            text = f"request {request.id}: {length} tokens exceed max_row_tokens {self._capacity.max_row_tokens}"
            raise CapacityExceeded(text, request_ids=(request.id,))
        self._check_features(request)

    def _check_features(self, request: Request) -> None:
        for feature in sorted(_needed(request) - self._capabilities.features, key=lambda item: item.value):
            raise Unsupported(f"request {request.id} needs {feature.value}", request_ids=(request.id,))
        if request.adapter is not None and request.adapter not in self._capabilities.adapters:
            raise Unsupported(f"request {request.id} needs an adapter that is not loaded", request_ids=(request.id,))
        for name in sorted(needed_fields(request.sampling) - self._capabilities.sampling, key=lambda item: item.value):
            raise Unsupported(f"request {request.id} needs sampling by {name.value}", request_ids=(request.id,))

    def _check_plan(self, plan: _Plan) -> None:
        """Validate one row's take and blocks."""
        row, groups, id = plan.row, self._capacity.groups, plan.row.request.id
        limit = row.prompt_left or 1 + len(plan.drafts)
        if not 0 <= plan.take <= limit:
            raise InvalidRequest(f"request {id}: take {plan.take} must be from 0 to {limit}", request_ids=(id,))
        if plan.drafts or row.drafting:
            self._check_drafts(plan)
        end = row.computed + plan.take
        if end > self._capacity.max_row_tokens:
            text = f"request {id}: position {end} exceeds max_row_tokens {self._capacity.max_row_tokens}"
            raise CapacityExceeded(text, request_ids=(id,))
        if plan.take < row.prompt_left and Feature.CHUNKED_PREFILL not in self._capabilities.features and plan.take:
            raise Unsupported(f"request {id} needs {Feature.CHUNKED_PREFILL.value}", request_ids=(id,))
        blocks = plan.blocks or tuple(() for _ in groups)
        if len(blocks) != len(groups):
            raise InvalidRequest(f"request {id}: a grant needs one block tuple per cache group", request_ids=(id,))
        for group, table, more in zip(groups, row.tables, blocks, strict=True):
            if more:
                _check_blocks(row, group, table, more)
            self._check_cover(row, group, len(table) + len(more), end)

    def _check_cover(self, row: RowState, group: CacheGroup, blocks: int, end: int) -> None:
        """Validate the number of blocks of a row that will have `end` positions."""
        id, prompt_len = row.request.id, row.request.prompt_len
        if group.kind is not CacheKind.CROSS:
            if blocks * group.block_size < end:
                raise InvalidRequest(f"request {id}: its blocks do not cover position {end - 1}", request_ids=(id,))
            return
        most = self._capacity.max_row_tokens - group.block_size
        wrong = (
            (blocks != 1, f"it has {blocks} blocks of the encoder's keys and values, and needs 1"),
            (
                not 1 <= prompt_len <= group.block_size,
                f"its prompt must have from 1 to {group.block_size} tokens, not {prompt_len}",
            ),
            (end - prompt_len >= most, f"position {end - 1} exceeds the {most} tokens that follow a prompt"),
        )
        _refuse_first(id, wrong)

    def _check_drafts(self, plan: _Plan) -> None:
        row, drafts, id = plan.row, plan.drafts, plan.row.request.id
        if drafts and Feature.SPECULATION not in self._capabilities.features:
            raise Unsupported(f"request {id} needs {Feature.SPECULATION.value}", request_ids=(id,))
        if len(drafts) > self._capacity.draft:
            text = f"request {id}: {len(drafts)} drafts exceed draft {self._capacity.draft}"
            raise CapacityExceeded(text, request_ids=(id,))
        wrong = (
            (row.drafting and plan.take > 0, "the step that ran its drafts has not been read"),
            (bool(drafts) and row.prompt_left > 0, "drafts follow a complete prompt only"),
            (bool(drafts) and plan.take != 1 + len(drafts), f"take {plan.take} must be 1 more than its {len(drafts)} drafts"),
            (
                not all(0 <= token < self._capabilities.vocab_size for token in drafts),
                f"drafts must be from 0 to {self._capabilities.vocab_size - 1}",
            ),
        )
        _refuse_first(id, wrong)

    def _check_step(self, known: int, plans: Sequence[_Plan]) -> None:
        """Validate the totals of a step: of `known` decode rows that need no check, and these."""
        total = known + sum([plan.take for plan in plans])
        if total > self._capacity.max_step_tokens:
            raise CapacityExceeded(f"{total} tokens exceed max_step_tokens {self._capacity.max_step_tokens}")
        prefilling = sum([1 for plan in plans if plan.take > 1 and not plan.drafts])
        if prefilling > self._capacity.max_prefill_rows:
            raise CapacityExceeded(f"{prefilling} rows prefill, more than max_prefill_rows {self._capacity.max_prefill_rows}")
        if self._capabilities.mixing is Mixing.NONE:
            prompts = {plan.row.prompt_left > 0 for plan in plans if plan.take} | ({False} if known else set())
            if len(prompts) > 1:
                raise Unsupported("this session does not mix prefill and decode in one step: let the rows that decode sit out")


def _advance(row: RowState, propose: bool) -> RowInput:
    """The next token of a row that decodes within `RowState.steps_left`."""
    start = row.computed
    row.computed, row.steps_left = start + 1, row.steps_left - 1
    return RowInput(row, start, 1, True, (), propose)


def _check_blocks(row: RowState, group: CacheGroup, table: list[int], more: tuple[int, ...]) -> None:
    """Validate the ids of a row's new blocks. In places that it does not see, the null block is as good as any."""
    unseen, id = group.unseen(row.next_start), row.request.id
    seen = more[max(0, unseen - len(table)) :]
    if any(not 1 <= block <= group.num_blocks for block in seen) or not NULL_BLOCK <= min(more) <= max(more) <= group.num_blocks:
        raise InvalidRequest(f"request {id}: block ids must be from 1 to {group.num_blocks}", request_ids=(id,))
    if len(set(seen)) < len(seen) or not set(seen).isdisjoint(table[unseen:] if unseen else table):
        raise InvalidRequest(f"request {id}: a block appears twice in its table", request_ids=(id,))


def _refuse_first(id: int, rules: Iterable[tuple[bool, str]]) -> None:
    """Raises InvalidRequest for the first rule that is broken."""
    for broken, why in rules:
        if broken:
            raise InvalidRequest(f"request {id}: {why}", request_ids=(id,))


def _needed(request: Request) -> set[Feature]:
    wanted = {
        Feature.PREFIX_REUSE: request.cached > 0,
        Feature.LOGPROBS: request.want.logprobs,
        Feature.TOP_N: request.want.top_n > 0,
        Feature.PROMPT_LOGPROBS: request.want.prompt_logprobs,
        Feature.MASKS: request.masked,
        Feature.LORA: request.adapter is not None,
        Feature.MEDIA: bool(request.media),
    }
    return {feature for feature, needed in wanted.items() if needed}
