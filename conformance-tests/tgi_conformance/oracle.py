"""The oracle, which predicts what the contract says will happen: the suite's own record of rows, handles, takes and blocks.

It is written from the contract's text alone and shares no code with `tgi_core.backend.batch_tracker` or any backend, so a mistake there is
not repeated here. `expect` predicts the outcome of a call without changing anything; `accept` records that it succeeded. Where a
call breaks several rules at once, any of their errors is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tgi_conformance.calls import NOTHING, Call, Clear, Decode, Encode, Filter, Prefill, Read, Ref
from tgi_conformance.image_rules import ImageRules
from tgi_conformance.rules import broken_draft_rules, broken_rules
from tgi_core.backend import (
    BackendError,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    CapacityExceeded,
    Feature,
    Grant,
    InvalidRequest,
    Mixing,
    Request,
    UnknownBatch,
    UnknownRequest,
    Unsupported,
)

Why = tuple[type[BackendError], str]
"""An error that the contract asks for, and the reason."""


def left_behind(group: CacheGroup, position: int) -> int:
    """Return how many of a row's first blocks end before the window of a query at `position`, and of all later ones."""
    if group.kind is not CacheKind.WINDOW or group.window is None:
        return 0
    first_seen = position - group.window + 1
    return max(0, first_seen // group.block_size)


@dataclass(slots=True, eq=False)
class OracleRow:
    """A request's state: positions below `done` are in launched steps; `blocks` has one list per cache group.

    While a step with drafts of the row is unread, it is `drafting`, and some positions below `done` may be written again.
    """

    request: Request
    done: int
    blocks: list[list[int]]
    live: bool = True
    failed: bool = False
    drafting: bool = False
    sure: int = 0
    """The first position that the row's next step may have: `done`, unless drafts are rejected."""

    @property
    def owed(self) -> int:
        """How many of the request's tokens no step has taken yet."""
        return max(0, len(self.request.tokens) - self.done)

    def gone(self, index: int, group: CacheGroup) -> list[int]:
        """The blocks in a window group of which its steps from now on see nothing."""
        return self.blocks[index][: left_behind(group, self.sure)]


@dataclass(frozen=True, slots=True)
class Part:
    """A row's part of a step: positions start…start + take - 1. `makes` is the index in the row of its first new token, or None."""

    row: OracleRow
    start: int
    take: int
    makes: int | None
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What a call must do: raise one of `errors`, or succeed if there are none; its step then runs `parts`. An error about images must name
    one of the requests that it `blames`, if there are any: it is theirs alone."""

    errors: tuple[Why, ...] = ()
    parts: tuple[Part, ...] = ()
    rows: tuple[OracleRow, ...] = ()
    count: int = 0
    blames: frozenset[int] = frozenset()


@dataclass(slots=True)
class Oracle:
    """The expected state of one session."""

    capabilities: Capabilities
    capacity: Capacity
    images: ImageRules | None = None
    """None if the session takes no images, or the suite does not know its model."""
    batches: dict[Ref, list[OracleRow]] = field(default_factory=dict)
    """Live batches by the call that returned their handle."""
    steps: dict[Ref, tuple[Part, ...]] = field(default_factory=dict)
    """Launched steps that are neither read nor given up."""
    origins: dict[Ref, frozenset[Ref]] = field(default_factory=dict)
    """The calls that launched the steps each live batch comes from."""
    lineage: dict[Ref, frozenset[Ref]] = field(default_factory=dict)
    """The calls that launched the steps each launched step comes from, including its own."""
    given_up: set[Ref] = field(default_factory=set)
    """Steps that will never be read, because their batch died or everything was cleared."""
    used_ids: set[int] = field(default_factory=set)

    @property
    def rows(self) -> list[OracleRow]:
        """All live rows."""
        return [row for rows in self.batches.values() for row in rows]

    def expect(self, call: Call) -> Expected:
        """Return what the contract says a call must do in the current state."""
        match call:
            case Prefill():
                return self._blaming(call, self._prefill(call))
            case Decode():
                return self._blaming(call, self._decode(call))
            case Read():
                return self._read(call)
            case Filter():
                return self._filter(call)
            case Clear():
                return self._clear(call)
            case Encode():
                why = "" if self.images is None else self.images.unfit(call.item)
                return Expected(((InvalidRequest, why),) if why else ())

    def accept(self, number: Ref, call: Call, expected: Expected, made: Mapping[int, int] | None = None) -> None:
        """Record that a call succeeded. `made` says how many tokens each row of a step that was read has made."""
        match call:
            case Prefill() | Decode():
                self._launch(number, call, expected)
            case Read():
                for part in self.steps.pop(call.step):
                    if part.drafts:
                        part.row.sure = part.row.done = part.start + (made or {}).get(part.row.request.id, 0)
                        part.row.drafting = False
            case Filter():
                before, origins = self.batches.pop(call.batch), self.origins.pop(call.batch)
                if expected.rows:
                    self.batches[number], self.origins[number] = list(expected.rows), origins
                self._drop(row for row in before if row not in expected.rows)
            case Clear():
                for ref in list(self.batches) if call.batch is None else [call.batch]:
                    self._end(ref)
                if call.batch is None:
                    self._give_up(list(self.steps))

    def kill(self, step: Ref) -> list[OracleRow]:
        """Record that reading a step failed, and return the rows that died.

        The step's batch and every batch derived from it are gone, whichever rows have left or joined since.
        """
        self._give_up([ref for ref in self.steps if step in self.lineage[ref]])
        return [row for ref, origins in list(self.origins.items()) if step in origins for row in self._end(ref)]

    def _end(self, batch: Ref) -> list[OracleRow]:
        rows = self.batches.pop(batch)
        del self.origins[batch]
        self._drop(rows)
        return rows

    def _give_up(self, steps: Iterable[Ref]) -> None:
        for ref in steps:
            del self.steps[ref]
            self.given_up.add(ref)

    def illegal(self, call: Call) -> str:
        """Return how this call itself would break the contract, or "". Such a call proves nothing about a backend."""
        if isinstance(call, Prefill | Decode) and len(self.steps) >= self.capacity.in_flight:
            return "more unread steps than in_flight"
        if isinstance(call, Prefill) and ({request.id for request in call.batch} & self.used_ids) - self._live_ids():
            return "a request id is reused"
        if isinstance(call, Read) and call.step in self.given_up:
            return "a step that was given up must not be read"
        if isinstance(call, Read) and call.step in self.steps and call.step != min(self.steps):
            return "steps must be read in order"
        if isinstance(call, Prefill) and self.capabilities.whole_prompts and _cuts_a_prompt(call):
            return "a prompt that must run whole ends in a later step"
        return "a block has two owners" if isinstance(call, Prefill | Decode) and self._shares_blocks(call) else ""

    def _live_ids(self) -> set[int]:
        return {row.request.id for row in self.rows}

    def _shares_blocks(self, call: Prefill | Decode) -> bool:
        """Return whether a second row gets a block that is not part of its owner's computed prefix."""
        live = self.rows
        granted = {grant.request_id for grant in call.grants}
        for group in range(len(self.capacity.groups)):
            owned = {block for row in live for block in row.blocks[group]}
            if left := {block for row in live for block in row.gone(group, self.capacity.groups[group])}:
                owned -= left - {block for row in live for block in self._seen(row, group)}
            asked = [grant.blocks[group] for grant in call.grants if len(grant.blocks) > group]
            if isinstance(call, Prefill):
                size = self.capacity.groups[group].block_size
                asked += [
                    request.blocks[group][request.cached // size :] for request in call.batch if len(request.blocks) > group
                ]
            flat = [block for blocks in asked for block in set(blocks)]
            own = {block for row in live if row.request.id in granted for block in row.blocks[group]}
            if len(set(flat)) < len(flat) or set(flat) & (owned - own):
                return True
        return False

    def _seen(self, row: OracleRow, group: int) -> list[int]:
        return row.blocks[group][left_behind(self.capacity.groups[group], row.sure) :]

    # predictions

    def _prefill(self, call: Prefill) -> Expected:
        errors: list[Why] = []
        if not call.batch:
            errors.append((InvalidRequest, "there are no requests"))
        if call.cached != NOTHING and self.capabilities.mixing is Mixing.NONE:
            errors.append((Unsupported, "mixing is not declared"))
        running = self._named([call.cached] if call.cached != NOTHING else [], errors)
        live = self._live_ids()
        for request in call.batch:
            errors += broken_rules(request, self.capabilities, self.capacity)
            if request.id in live:
                errors.append((InvalidRequest, f"request {request.id} is already alive"))
        if len({request.id for request in call.batch}) < len(call.batch):
            errors.append((InvalidRequest, "a request appears twice in the batch"))
        if len(live) + len(call.batch) > self.capacity.max_rows:
            errors.append(
                (CapacityExceeded, f"{len(live) + len(call.batch)} rows are more than max_rows {self.capacity.max_rows}")
            )
        if errors:
            return Expected(tuple(errors))
        fresh = [
            OracleRow(request, request.cached, [list(table) for table in request.blocks], sure=request.cached)
            for request in call.batch
        ]
        takes = self._takes(running, call.grants, errors) + [request.take for request in call.batch]
        return self._step(running + fresh, takes, call.grants, errors)

    def _decode(self, call: Decode) -> Expected:
        errors: list[Why] = []
        if not call.batches or len(set(call.batches)) < len(call.batches):
            errors.append((InvalidRequest, "decode takes one or more distinct batches"))
        rows = self._named(call.batches, errors)
        if errors:
            return Expected(tuple(errors))
        return self._step(rows, self._takes(rows, call.grants, errors), call.grants, errors)

    def _read(self, call: Read) -> Expected:
        if call.step in self.given_up:
            return Expected()
        if call.step not in self.steps:
            return Expected(((InvalidRequest, "this step was already read, or never launched"),))
        return Expected(parts=self.steps[call.step])

    def _filter(self, call: Filter) -> Expected:
        errors: list[Why] = []
        rows = self._named([call.batch], errors)
        strangers = set(call.keep) - {row.request.id for row in rows}
        if strangers and not errors:
            errors.append((UnknownRequest, f"the batch has no row {min(strangers)}"))
        return Expected(tuple(errors), rows=tuple(row for row in rows if row.request.id in call.keep))

    def _clear(self, call: Clear) -> Expected:
        errors: list[Why] = []
        rows = self.rows if call.batch is None else self._named([call.batch], errors)
        return Expected(tuple(errors), count=len(rows))

    def _blaming(self, call: Prefill | Decode, expected: Expected) -> Expected:
        """Add the errors of requests whose images do not fit, or are cut by this step."""
        if self.images is None:
            return expected
        reached = [(row.request, row.done + grant.take) for grant in call.grants for row in self.rows if _granted(grant, row)]
        broken: dict[int, str] = {}
        if isinstance(call, Prefill):
            reached += [(request, request.cached + request.take) for request in call.batch]
            broken = {request.id: why for request in call.batch if (why := self.images.unfit_request(request))}
        for request, end in reached:
            if request.id not in broken and self.images.uncut(request, end) != end:
                broken[request.id] = "a step ends inside an image, whose tokens see each other"
        if not broken:
            return expected
        errors = tuple((InvalidRequest, f"request {id}: {why}") for id, why in broken.items())
        return replace(expected, errors=(*expected.errors, *errors), blames=frozenset(broken))

    def _named(self, refs: Iterable[Ref], errors: list[Why]) -> list[OracleRow]:
        rows: list[OracleRow] = []
        for ref in refs:
            if ref not in self.batches:
                errors.append((UnknownBatch, "its handle was already used, or never issued"))
            rows += self.batches.get(ref, [])
        return rows

    def _takes(self, rows: list[OracleRow], grants: tuple[Grant, ...], errors: list[Why]) -> list[int]:
        by_id = {grant.request_id: grant for grant in grants}
        if len(by_id) < len(grants):
            errors.append((InvalidRequest, "two grants name one row"))
        if strangers := by_id.keys() - {row.request.id for row in rows}:
            errors.append((UnknownRequest, f"a grant names row {min(strangers)}, which is not in this step"))
        takes = []
        for row in rows:
            grant = by_id.get(row.request.id) or Grant(row.request.id, 0 if row.owed else 1)
            take, most = grant.take, row.owed or 1
            if grant.drafts:
                errors += broken_draft_rules(grant, row.owed, self.capabilities, self.capacity)
                most += len(grant.drafts) * (Feature.SPECULATION in self.capabilities.features)
            if row.drafting and take:
                errors.append((InvalidRequest, f"row {row.request.id} takes {take}, and its step with drafts is unread"))
            if not 0 <= take <= most:
                errors.append((InvalidRequest, f"row {row.request.id} may take from 0 to {most} tokens, not {take}"))
            takes.append(take)
        return takes

    def _step(self, rows: list[OracleRow], takes: list[int], grants: tuple[Grant, ...], errors: list[Why]) -> Expected:
        granted = {grant.request_id: grant for grant in grants}
        given = [granted.get(row.request.id) or Grant(row.request.id, take) for row, take in zip(rows, takes, strict=True)]
        for row, take, grant in zip(rows, takes, given, strict=True):
            errors += self._row_rules(row, take, grant.blocks)
        total = sum(max(0, take) for take in takes)
        if total > self.capacity.max_step_tokens:
            errors.append((CapacityExceeded, f"{total} tokens are more than max_step_tokens {self.capacity.max_step_tokens}"))
        long = sum(take > 1 and not grant.drafts for take, grant in zip(takes, given, strict=True))
        if long > self.capacity.max_prefill_rows:
            errors.append(
                (CapacityExceeded, f"{long} rows take more than one token, max_prefill_rows is {self.capacity.max_prefill_rows}")
            )
        kinds = {row.owed > 0 for row, take in zip(rows, takes, strict=True) if take > 0}
        if self.capabilities.mixing is Mixing.NONE and len(kinds) > 1:
            errors.append((Unsupported, "prompts and rows that decode run in one step, but mixing is not declared"))
        parts = []
        for row, take, grant in zip(rows, takes, given, strict=True):
            if take > 0:
                end = row.done + take - len(grant.drafts)
                parts.append(Part(row, row.done, take, end if end >= len(row.request.tokens) else None, grant.drafts))
        return Expected(tuple(errors), tuple(parts), tuple(rows))

    def _row_rules(self, row: OracleRow, take: int, more: tuple[tuple[int, ...], ...]) -> Iterable[Why]:
        id, end = row.request.id, row.done + take
        if 0 < take < row.owed and Feature.CHUNKED_PREFILL not in self.capabilities.features:
            yield Unsupported, f"row {id} takes part of its prompt, but chunked_prefill is not declared"
        if end > self.capacity.max_row_tokens:
            yield CapacityExceeded, f"row {id} would reach {end} tokens, max_row_tokens is {self.capacity.max_row_tokens}"
        if more and len(more) != len(self.capacity.groups):
            yield InvalidRequest, f"row {id} needs one tuple of blocks per cache group"
            return
        for index, group in enumerate(self.capacity.groups):
            held, new = row.blocks[index] if index < len(row.blocks) else [], more[index] if more else ()
            if new or row.done == row.request.cached:  # the blocks of a row that has run were judged when it got them
                behind = left_behind(group, row.sure)
                seen, unseen = [*held, *new][behind:], [*held, *new][:behind]
                if any(not 1 <= block <= group.num_blocks for block in seen) or any(
                    not 0 <= block <= group.num_blocks for block in unseen
                ):
                    yield InvalidRequest, f"row {id} has a block id outside 1…{group.num_blocks}"
                if len(set(seen)) < len(seen):
                    yield InvalidRequest, f"row {id} has the same block twice"
            if (len(held) + len(new)) * group.block_size < end:
                yield InvalidRequest, f"row {id}: its blocks do not cover position {end - 1}"

    # state changes

    def _launch(self, number: Ref, call: Prefill | Decode, expected: Expected) -> None:
        granted = {grant.request_id: grant.blocks for grant in call.grants}
        for row in expected.rows:
            for table, more in zip(row.blocks, granted.get(row.request.id, ()), strict=False):
                table.extend(more)
        for part in expected.parts:
            part.row.done += part.take
            part.row.drafting |= bool(part.drafts)
            part.row.sure = part.start if part.drafts else part.row.done
        self.used_ids |= {row.request.id for row in expected.rows}
        origins = {number}
        for ref in (call.cached,) if isinstance(call, Prefill) else call.batches:
            self.batches.pop(ref, None)
            origins |= self.origins.pop(ref, frozenset())
        self.lineage[number] = frozenset(origins)
        if expected.rows:
            self.batches[number], self.origins[number] = list(expected.rows), self.lineage[number]
        self.steps[number] = expected.parts

    @staticmethod
    def _drop(rows: Iterable[OracleRow]) -> None:
        for row in rows:
            row.live = False


def _granted(grant: Grant, row: OracleRow) -> bool:
    """Return whether a grant lets a row run."""
    return grant.request_id == row.request.id and grant.take > 0


def _cuts_a_prompt(call: Prefill) -> bool:
    """Return whether a request begins with a part of its prompt, whose tokens would not see the rest."""
    return any(request.cached + request.take < request.prompt_len for request in call.batch)
