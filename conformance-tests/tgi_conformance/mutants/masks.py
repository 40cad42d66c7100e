"""Grammar masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import MaskRow, OutOfMemory, RowFaultKind, Rows, Step, hookimpl
from tgi_core.backend.batch_tracker import RowInput


class Source:
    """A source between the session and the real one."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Pass the call on."""
        found: bytes = self.real.fill(rows)
        return found


class Between(Sound):
    """A session whose mask source is wrapped."""

    source: type[Source] = Source

    def __init__(self, *arguments: Any, masks: Any = None, **options: Any) -> None:
        super().__init__(*arguments, masks=None if masks is None else self.source(masks), **options)


class _Late(Source):
    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Allows everything to a row that has made nothing."""
        found = super().fill(rows)
        return found if rows[0].tokens else b"\xff" * (len(found) - 4) + found[-4:]


@mutant("first-token-unmasked", "masks.allowed")
class FirstTokenUnmasked(Between):
    """Masks begin with the second token (guidance state made after prefill, seen in early outlines integrations)."""

    source = _Late


class _Twice(Source):
    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Report every token twice."""
        return super().fill(tuple(replace(row, tokens=row.tokens * 2) for row in rows))


@mutant("tokens-told-twice", "masks.told")
class TokensToldTwice(Between):
    """A retry reports the same token again, which advances the grammar's state (vllm structured output under preemption)."""

    source = _Twice


class _Never(Source):
    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Report no tokens."""
        return super().fill(tuple(replace(row, tokens=()) for row in rows))


@mutant("tokens-not-told", "masks.told")
class TokensNotTold(Between):
    """The grammar never advances."""

    source = _Never


@mutant("mask-for-all", "masks.allowed")
class MaskForAll(Sound):
    """One masked row masks its batch mates (a mask broadcast over the batch)."""

    def _compute(self, launch: Any) -> None:
        self._any = any(row_input.row.request.masked for row_input in launch.row_inputs)
        super()._compute(launch)

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row, kept = row_input.row, row_input.row.request
        row.request = replace(kept, masked=self._masks is not None and self._any)
        try:
            return super()._sample(row_input, state)
        finally:
            row.request = kept


@mutant("mask-fault-ends-step", "masks.row-fault")
class MaskFaultEndsStep(Sound):
    """One row's empty mask fails the whole step."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Fail the step."""
        found = super().rows(step)
        if any(row.fault for row in found.rows):
            raise OutOfMemory("a mask allows nothing")
        return found


@mutant("mask-fault-as-nan", "masks.row-fault", "masks.fault-ahead")
class MaskFaultAsNan(Sound):
    """A softmax over nothing is NaN, and is reported as such."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return the wrong kind of fault."""
        found = super().rows(step)
        return replace(
            found,
            rows=tuple(replace(row, fault=replace(row.fault, kind=RowFaultKind.NAN)) if row.fault else row for row in found.rows),
        )


@mutant("mask-fault-picks-token", "masks.row-fault")
class MaskFaultPicksToken(Sound):
    """If nothing is allowed, token 0 is generated."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return the argmax of nothing."""
        found = super().rows(step)
        return replace(found, rows=tuple(replace(row, fault=None, tokens=(0,)) if row.fault else row for row in found.rows))


@mutant("failed-row-returns", "masks.fault-ahead")
class FailedRowReturns(Sound):
    """A failed row is in the step that was launched before the failure was known, and takes its batch mates' place there."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Drop the mate's row instead."""
        failed = bool(self._failed)
        found = super().rows(step)
        return replace(found, rows=()) if failed and not any(row.fault for row in found.rows) else found
