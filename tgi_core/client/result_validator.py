"""Validation of a shard's answers against its turns.

A shard may be third-party software, and tgi-core's may have bugs. Each answer is checked against its turn before it is used: a
mismatch would silently lose tokens, or crash the scheduler. For a step in which no row begins or ends, the check is a single
comparison of lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tgi_core.backend import BackendBug, Grant, Scope
from tgi_core.wire.types import (
    Bookkeeping,
    Clear,
    Decode,
    Fault,
    FinishReason,
    GeneratedText,
    Generation,
    Prefill,
    ShardRequest,
    StepResult,
    StepVerb,
    Turn,
    TurnResult,
)


def invalid(what: str) -> BackendBug:
    """Return the error for an invalid answer."""
    return BackendBug(f"the shard's answer makes no sense: {what}")


@dataclass(slots=True)
class _Row:
    """A row on the shard, which may generate `tokens` tokens beyond the `before` that it started with. `end` is the number of the
    decode step that generates the last one, 0 until the step with the first one is launched."""

    tokens: int
    before: int
    end: int = 0


@dataclass(slots=True)
class _Step:
    """A launched step: the rows for which it generates a token, in batch order, and those of them that end with it."""

    rows: list[int]
    count: int
    ending: set[int] = field(default_factory=set)
    drafts: dict[int, int] = field(default_factory=dict)
    """Number of drafts by row, where there are some."""
    postponed: set[int] = field(default_factory=set)
    """Rows that take no part in it, and so end one step later."""


class ResultValidator:
    """Tracks the turns of one shard and checks each answer against them. A row yields up to as many more tokens in a step as
    it has drafts, and ends earlier; `unasked` is the number of those that a shard of another kind makes by itself.

    It keeps its own record of batches, rows and steps, derived only from the turns: the scheduler's record is updated from the
    answers, so it cannot expose a wrong answer.
    """

    def __init__(self, unasked: int = 0) -> None:
        self._unasked = unasked
        self._rows: dict[int, _Row] = {}
        self._prompts: dict[int, int] = {}
        """For rows with an incomplete prompt, the number of prompt tokens that no step has computed."""
        self._batches: dict[int, list[int]] = {}
        """The rows of each batch, in order."""
        self._steps: dict[int, _Step] = {}
        """Launched steps that have not been read."""
        self._count = 0
        """Number of steps that have decoded batches; a row takes part in all of them."""
        self._ends: dict[int, set[int]] = {}
        """Rows by the number of the decode step at which they end."""

    def check(self, turn: Turn, result: TurnResult) -> None:
        """Record a turn and check its answer. Raises BackendBug for a mismatch."""
        refused = result.refused
        if refused is not None:
            self._check_refusal(turn, refused)
        self._track(turn.bookkeeping)
        if refused is None and turn.launch is not None:
            self._launch(turn.launch)
        self._check_read(turn, result.result)
        if refused is not None and (refused.lost or refused.scope is Scope.SESSION):
            self._forget()

    # turns

    def _track(self, verbs: Iterable[Bookkeeping]) -> None:
        for verb in verbs:
            if isinstance(verb, Clear):
                for name in [verb.batch] if verb.batch is not None else list(self._batches):
                    self._drop(self._batches.pop(name, []))
                continue
            rows, keep = self._batches.pop(verb.batch, []), set(verb.keep)
            self._drop(id for id in rows if id not in keep)
            if keep:
                self._batches[verb.batch] = [id for id in rows if id in keep]

    def _drop(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._prompts.pop(id, None)
            row = self._rows.pop(id, None)
            if row is not None:
                self._ends.get(row.end, set()).discard(id)

    def _launch(self, verb: StepVerb) -> None:
        merged = verb.batches if isinstance(verb, Decode) else () if verb.cached is None else (verb.cached,)
        rows = self._batches.pop(merged[0], []) if merged else []
        for name in merged[1:]:
            rows = rows + self._batches.pop(name, [])
        self._count += bool(merged)
        step = self._steps[verb.step] = _Step(rows, self._count)
        silent = self._take(verb.grants, step) if verb.grants else set()
        silent.update(self._prompts)
        if silent:
            step.rows = [id for id in rows if id not in silent]
        step.ending |= self._ends.pop(self._count, set())
        if isinstance(verb, Prefill):
            rows = rows + [item.id for item in verb.requests]
            step.rows = step.rows + [item.id for item in verb.requests if self._begin(item, step)]
        self._batches[verb.step] = rows

    def _take(self, grants: Iterable[Grant], step: _Step) -> set[int]:
        """Advance the prompts. Return the rows that are not in the step, which end one step later."""
        silent = set()
        for grant in grants:
            if grant.drafts:
                step.drafts[grant.request_id] = len(grant.drafts)
            left = self._prompts.get(grant.request_id)
            if left is None:
                if not grant.take:
                    silent.add(grant.request_id)
                    self._postpone(grant.request_id, step)
            elif left > grant.take:
                self._prompts[grant.request_id] = left - grant.take
            else:
                del self._prompts[grant.request_id]
                self._start(grant.request_id, step)
        return silent

    def _begin(self, item: ShardRequest, step: _Step) -> bool:
        """Add a new row. Return whether the step generates a token for it."""
        request = item.request
        before = len(request.tokens) - request.prompt_len
        self._rows[request.id] = _Row(item.stopping.max_new_tokens - before, before)
        left = len(request.tokens) - request.cached - request.take
        if left:
            self._prompts[request.id] = left
        else:
            self._start(request.id, step)
        return not left

    def _start(self, id: int, step: _Step) -> None:
        """Record that the step generates the row's first token."""
        row = self._rows.get(id)
        if row is None:
            return
        row.end = step.count + row.tokens - 1
        if row.tokens > 1:
            self._ends.setdefault(row.end, set()).add(id)
        else:
            step.ending.add(id)

    def _postpone(self, id: int, step: _Step) -> None:
        row = self._rows.get(id)
        if row is not None and id in (ends := self._ends.get(row.end, set())):
            ends.discard(id)
            row.end += 1
            self._ends.setdefault(row.end, set()).add(id)
            step.postponed.add(id)

    def _hasten(self, id: int, row: _Row, steps: int) -> None:
        """Let a row that made more than one token end so many steps earlier."""
        if id in (ends := self._ends.get(row.end, set())):
            ends.discard(id)
            row.end -= steps
            if row.end <= self._count:
                raise invalid(f"request {id} has all of its tokens and no end")
            self._ends.setdefault(row.end, set()).add(id)

    def _forget(self) -> None:
        """Forget everything: the shard holds nothing any more."""
        for each in (self._rows, self._prompts, self._batches, self._steps, self._ends):
            each.clear()

    # answers

    def _check_refusal(self, turn: Turn, refused: Fault) -> None:
        if turn.launch is None and not turn.bookkeeping:
            raise invalid(f"it refuses a turn that asks for nothing: {refused.message}")
        new = {item.id for item in turn.launch.requests} if isinstance(turn.launch, Prefill) else set()
        self._check_names(refused, new)

    def _check_names(self, fault: Fault, more: Iterable[int]) -> None:
        for id in set(fault.request_ids).difference(self._rows, more):
            raise invalid(f"a fault of request {id}, which it does not have: {fault.message}")

    def _check_read(self, turn: Turn, read: StepResult | None) -> None:
        step = self._steps.pop(turn.read, None) if turn.read is not None else None
        if step is None:  # there was nothing to read, or the step to launch and read was refused
            if read is not None:
                raise invalid(f"rows of step {read.step}, which nobody wants to read")
        elif read is None:
            raise invalid(f"it lacks the rows of step {turn.read}")
        elif read.step != turn.read:
            raise invalid(f"rows of step {read.step} in place of step {turn.read}")
        elif read.fault is not None:
            self._check_names(read.fault, step.rows)
            self._forget()
        else:
            self._check_rows(step, read)

    def _check_rows(self, step: _Step, read: StepResult) -> None:
        ids = [made.request_id for made in read.generations]
        if ids != step.rows:
            self._check_ids(step, ids)
        for made in read.generations if read.unusual is None else read.unusual:
            if made.finished is not None or made.fault is not None or len(made.tokens) != 1:
                self._check_row(step, made)
        for id in step.ending.intersection(self._rows) if step.ending else ():
            raise invalid(f"request {id} has all of its tokens and no end")

    def _check_ids(self, step: _Step, ids: list[int]) -> None:
        """Check the rows of an answer. Rows of dropped requests are optional."""
        launched = set(step.rows)
        found = [id for id in ids if id in self._rows or id not in launched]
        wanted = [id for id in step.rows if id in self._rows]
        if found == wanted:
            return
        for id in set(wanted).difference(found):
            raise invalid(f"it lacks the row of request {id}")
        for id in set(found).difference(wanted):
            raise invalid(f"a row of request {id}, which is not in the step")
        raise invalid("rows that come twice, or not in the order of the batch")

    def _check_row(self, step: _Step, made: Generation) -> None:
        """Check a row with anything other than exactly one token."""
        id, row = made.request_id, self._rows.get(made.request_id)
        if row is None:
            return
        most = 1 + step.drafts.get(id, self._unasked)
        if len(made.tokens) > most or (made.fault is None and not made.tokens):
            raise invalid(f"{len(made.tokens)} tokens for request {id} in one step")
        if made.finished is not None and not self._unasked:
            since = sum(id in later.postponed for later in self._steps.values())  # only later steps are unread
            self._check_end(row.end - since - step.count - len(made.tokens) + 1, row, made.finished, id)
        if made.finished is not None or made.fault is not None:
            self._drop([id])
        elif len(made.tokens) > 1:
            self._hasten(id, row, len(made.tokens) - 1)

    @staticmethod
    def _check_end(left: int, row: _Row, finished: GeneratedText, id: int) -> None:
        """Check the end of a row that could have made `left` more tokens."""
        count = row.before + row.tokens - left
        if finished.generated_tokens != count:
            raise invalid(f"request {id} ends with {finished.generated_tokens} tokens, of which {count} were made")
        if finished.finish_reason is FinishReason.LENGTH and left:
            raise invalid(f"request {id} ends for its length {left} tokens early")
