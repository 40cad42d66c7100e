"""Judges whether the rows of a step are what the oracle expects, and what each request makes alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from itertools import pairwise, takewhile
from typing import Protocol

from tgi_conformance.fields import FILTERS
from tgi_conformance.masks import AFTER, DOOMED, FAILING, allows, phase
from tgi_conformance.oracle import OracleRow, Part
from tgi_conformance.sessions import Occupied
from tgi_conformance.verdict import Violation
from tgi_core.backend import Request, Row, RowFaultKind, Rows, Sampling, TopToken

TOLERANCE = {"float32": 2e-3, "float16": 0.35, "bfloat16": 0.35}
"""Maximum difference of a logprob, in nats, between two batch shapes or from the golden transcript. float16 may run as bfloat16."""
FAR = 16.0
"""A logprob of lower precision that is more than this many nats below 0 may differ in proportion, because rounding is relative to a
logit."""


def close_call(request: Request, alone: Row, tolerance: float) -> bool:
    """Whether rounding may have chosen another token than a request makes alone. That is unknown without top tokens, or if the token was
    drawn; the backend then gets the benefit of the doubt."""
    if request.sampling.do_sample or not alone.top or len(alone.top[0]) < 2:
        return True
    return alone.top[0][0].logprob - alone.top[0][1].logprob < 2 * tolerance


class Yardstick(Protocol):
    """The outputs of requests that run alone; `where` names their source in messages.

    Raises Occupied while the device has no room for the session to run them.
    """

    @property
    def where(self) -> str:
        """For messages such as "alone it makes 7"."""

    def rows(self, request: Request, count: int) -> list[Row]:
        """The first `count` results of a request, or more. Raises SuiteFault if it does not have that many."""


def _ending(row: Row) -> str:
    """A row's outcome, in words."""
    return f"a {row.fault.kind.value} fault" if row.fault is not None else f"the tokens {list(row.tokens)}"


def _named(ids: Collection[int]) -> str:
    """Rows, in words."""
    return f"row{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}" if ids else "no row"


def _cut(how: Sampling) -> bool:
    """Whether a token's logprob depends on which others a filter has left: rounding may move one across the cut."""
    return any(spec.is_used(how) for spec in FILTERS)


def _stretch(request: Request) -> float:
    """The factor by which the error of a row's logprobs may exceed the usual one: the repetition penalty and the temperature multiply the
    error of a logit, and a mask may leave only logits far from zero, which are rounded more coarsely."""
    how = request.sampling
    penalty = max(how.repetition_penalty, 1 / how.repetition_penalty)
    return max(1.0, penalty / how.temperature if how.do_sample else penalty) * (2 if request.masked else 1)


class RowJudge:
    """Compares the rows of steps with the oracle's parts and a yardstick. Rows that left the exact path are in `strayed`.

    What can be judged from a step alone is judged at once. A row is compared with the yardstick when it has left its session, so that
    the yardstick runs each request once, for as many tokens as are needed.
    """

    def __init__(self, yardstick: Yardstick, dtype: str, mask_kind: str | None, *, bits: bool = False) -> None:
        """`bits`: no rounding is tolerated, whatever the dtype."""
        self._yardstick, self._mask_kind, self._bits = yardstick, mask_kind, bits
        self._exact, self._tolerance = bits or dtype == "float32", TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
        self.strayed: set[int] = set()
        self._waiting: dict[OracleRow, list[tuple[Part, Row]]] = {}

    @property
    def yardstick(self) -> Yardstick:
        """What rows are compared with."""
        return self._yardstick

    @property
    def exact(self) -> bool:
        """Whether tokens must be identical."""
        return self._exact

    def settle_left(self) -> None:
        """Compare rows that have left their session. Raises Violation. Rows wait if the device has no room for the yardstick's session."""
        with contextlib.suppress(Occupied):
            self._settle([row for row in self._waiting if not row.live or row.failed])

    def settle(self) -> None:
        """Compare all rows. Raises Violation, and Occupied while the device has no room for the yardstick's session."""
        self._settle(list(self._waiting))

    def _settle(self, rows: Sequence[OracleRow]) -> None:
        for each in rows:
            results = self._waiting[each]
            last, row = results[-1]
            made = 0 if last.makes is None else last.makes + len(row.tokens) - len(each.request.tokens)
            alone = self._yardstick.rows(each.request, made) if made else []
            for part, row in results:
                self._compare(part, row, alone)
            del self._waiting[each]

    def step(self, step_id: int, parts: Sequence[Part], result: Rows) -> None:
        """Judge all rows of one step. Raises Violation. Marks rows that failed as required."""
        if result.step != step_id:
            raise Violation("step", f"the rows of step {step_id} say that they are of step {result.step}")
        self._order(parts, result)
        rows = {row.request_id: row for row in result.rows}
        for part in parts:
            id = part.row.request.id
            if not part.row.live or part.row.failed:
                continue
            if id not in rows:
                count = "1 token" if part.take == 1 else f"{part.take} tokens"
                raise Violation(
                    "rows", f"row {id} ran {count} in the step, and has no result; there are results for {_named(rows)}"
                )
            self._row(part, rows[id])

    @staticmethod
    def _order(parts: Sequence[Part], result: Rows) -> None:
        expected = [part.row.request.id for part in parts]
        found = [row.request_id for row in result.rows]
        if strangers := set(found) - set(expected):
            raise Violation("rows", f"the step has a result for row {min(strangers)}, which did not run in it")
        if len(set(found)) < len(found):
            raise Violation("rows", f"a row has two results in one step: {found}")
        if found != [id for id in expected if id in set(found)]:
            raise Violation("order", f"rows must come in the order of the batch {expected}, not {found}")

    def _row(self, part: Part, row: Row) -> None:
        self._ended(part, row)
        if part.row.failed and not row.tokens:
            return
        want, made = part.row.request.want, self._count(part, row)
        self._masked(part, row)
        if len(row.logprobs) != (made if want.logprobs else 0):
            raise Violation(
                "logprobs", f"row {row.request_id}: {len(row.logprobs)} logprobs for {made} tokens, want {want.logprobs}"
            )
        if len(row.top) != (made if want.top_n else 0):
            raise Violation(
                "top", f"row {row.request_id}: {len(row.top)} lists of top tokens for {made} tokens, want {want.top_n}"
            )
        self._waiting.setdefault(part.row, []).append((part, row))

    def _ended(self, part: Part, row: Row) -> None:
        """Check that a row ends with a fault exactly where its mask allows no token. Marks it as failed."""
        left, id = self._left(part), row.request_id
        if row.fault is None:
            if left is not None and (left == 0 or len(row.tokens) > left):
                raise Violation(
                    "fault", f"row {id}'s mask allows no token: it must end with a mask fault, not with {_ending(row)}"
                )
            return
        if left is None:
            raise Violation("fault", f"row {id} failed for no reason: {row.fault.kind.value}: {row.fault.message}")
        if row.fault.kind is not RowFaultKind.MASK or row.tokens != part.drafts[:left] or len(row.tokens) < left:
            after = f" after {left} more tokens" if left else ""
            raise Violation(
                "fault",
                f"row {id}'s mask allows no token{after}: it must end with a mask fault there, not with {_ending(row)}"
                f"{f' and the tokens {list(row.tokens)}' if row.tokens else ''}",
            )
        part.row.failed = True

    @staticmethod
    def _count(part: Part, row: Row) -> int:
        """Return how many tokens a row has made. One that ran drafts makes tokens up to the first that is not the draft."""
        id, made = row.request_id, len(row.tokens)
        if row.drafted != len(part.drafts):
            raise Violation("drafts", f"row {id} ran {len(part.drafts)} drafts, and its result says {row.drafted}")
        if not part.drafts:
            due = 0 if part.makes is None else 1
            if made != due:
                raise Violation("tokens", f"row {id} at position {part.start} + {part.take} makes {due} tokens, not {made}")
        elif row.fault is None:
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(row.tokens, part.drafts, strict=False)))
            if made != right + 1:
                rule = f"it keeps tokens up to the first that is not the draft, which is {right + 1} here"
                raise Violation("drafts", f"row {id} ran the drafts {list(part.drafts)} and made {list(row.tokens)}: {rule}")
        return made

    def _masked(self, part: Part, row: Row) -> None:
        """Check that a masked row makes only tokens that the suite's mask source has allowed."""
        request = part.row.request
        if self._mask_kind is None or not request.masked or part.makes is None:
            return
        for index, token in enumerate(row.tokens, part.makes):
            if not allows(index - len(request.tokens), token, phase(self._mask_kind, request.id)):
                raise Violation("masks", f"row {request.id} made token {token} at {index}, which its mask forbids")

    def _compare(self, part: Part, row: Row, alone: Sequence[Row]) -> None:
        """Compare with what the request makes alone, token by token."""
        for place in range(len(row.tokens) if part.makes is not None else 0):
            at = slice(place, place + 1)
            one = Row(row.request_id, row.tokens[at], row.logprobs[at], row.top[at])
            index = (part.makes or 0) + place
            self._token(part, index, one, alone[index - len(part.row.request.tokens)])
        self._prompt(part, row)

    def _left(self, part: Part) -> int | None:
        """Return how many tokens a row can make in a step before its mask allows none, or None if it can make all."""
        request = part.row.request
        if part.makes is None or self._mask_kind != FAILING or not request.masked or request.id < DOOMED:
            return None
        left = max(0, AFTER - (part.makes - len(request.tokens)))
        return left if left <= len(part.drafts) else None

    def _token(self, part: Part, index: int, row: Row, alone: Row) -> None:
        id = row.request_id
        if id in self.strayed:
            return
        if row.tokens != alone.tokens:
            if self._exact or not close_call(part.row.request, alone, self._tolerance):
                raise Violation(
                    "mates",
                    f"row {id} made token {row.tokens[0]} at {index}, {self._yardstick.where} it makes {alone.tokens[0]}",
                )
            self.strayed.add(id)
            return
        if not self._exact and _cut(part.row.request.sampling):
            return
        stretch = _stretch(part.row.request)
        for mine, other in zip(row.logprobs, alone.logprobs, strict=True):
            self._near(f"row {id}: the logprob of token {row.tokens[0]}", mine, other, stretch)
        for tops, others in zip(row.top, alone.top, strict=True):
            self._top(part, row, tops, others)

    def _top(self, part: Part, row: Row, tops: tuple[TopToken, ...], others: tuple[TopToken, ...]) -> None:
        id, limit, stretch = row.request_id, part.row.request.want.top_n, _stretch(part.row.request)
        if len(tops) > limit or not tops:
            raise Violation("top", f"row {id} asked for {limit} top tokens and got {len(tops)}")
        if any(a.logprob < b.logprob for a, b in pairwise(tops)):
            raise Violation("top", f"row {id}: its top tokens are not in falling order: {tops}")
        if len({top.id for top in tops}) < len(tops):
            raise Violation("top", f"row {id}: a token stands twice among its top tokens: {tops}")
        if self._exact and not part.row.request.sampling.do_sample and tops[0].id != row.tokens[0]:
            raise Violation("top", f"row {id} is greedy and made token {row.tokens[0]}, its likeliest is {tops[0].id}")
        if row.logprobs and tops[0].id == row.tokens[0]:
            self._near(f"row {id}: the logprob of its likeliest token", tops[0].logprob, row.logprobs[0])
        if len(tops) != len(others):
            raise Violation("top", f"row {id} has {len(tops)} top tokens, {self._yardstick.where} it has {len(others)}")
        for mine, other in zip(tops, others, strict=True):
            self._near(f"row {id}: the logprob of a top token", mine.logprob, other.logprob, stretch)
        known = {other.id: other.logprob for other in others}
        for mine in tops:
            if mine.id in known:
                self._near(f"row {id}: the logprob of its top token {mine.id}", mine.logprob, known[mine.id], stretch)
            elif mine.logprob - others[-1].logprob > 2 * self._tolerance * stretch:
                where = self._yardstick.where
                raise Violation("top", f"row {id} has {mine.id} among its top tokens, {where} they are {sorted(known)}")

    def _prompt(self, part: Part, row: Row) -> None:
        request = part.row.request
        if not request.want.prompt_logprobs:
            if row.prompt_logprobs:
                raise Violation(
                    "prompt", f"row {row.request_id} did not ask for prompt logprobs and got {len(row.prompt_logprobs)}"
                )
            return
        whole = self._yardstick.rows(request, 1)[0].prompt_logprobs
        if len(whole) != request.prompt_len or (whole and whole[0] is not None):
            raise Violation(
                "prompt", f"a prompt of {request.prompt_len} tokens has {len(whole)} logprobs; it has one each, the first None"
            )
        expected = whole[part.start + 1 if part.start else 0 : min(part.start + part.take + 1, request.prompt_len)]
        if len(row.prompt_logprobs) != len(expected):
            last = part.start + part.take - 1
            text = f"positions {part.start}…{last} yield {len(expected)} prompt logprobs, not {len(row.prompt_logprobs)}"
            raise Violation("prompt", f"row {row.request_id}: {text}")
        for mine, other in zip(row.prompt_logprobs, expected, strict=True):
            if (mine is None) is not (other is None):
                raise Violation("prompt", f"row {row.request_id}: only token 0 of a prompt has no logprob")
            if mine is not None and other is not None:
                self._near(f"row {row.request_id}: a prompt logprob", mine, other)

    def _near(self, what: str, mine: float, other: float, stretch: float = 1.0) -> None:
        if mine == other == -math.inf:
            return
        if self._bits and mine != other:
            raise Violation("bits", f"{what} is {mine!r}, {self._yardstick.where} it is {other!r}: not the same bits")
        allowed = self._tolerance if self._exact else self._tolerance * stretch * max(1.0, abs(other) / FAR)
        if math.isnan(mine) or mine > 1e-4 or abs(mine - other) > allowed:
            raise Violation("logprobs", f"{what} is {mine:.5f}, {self._yardstick.where} it is {other:.5f}")
