"""Operators on the results of a step, around any backend: rows dropped, doubled, swapped or late, and wrong numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tgi_conformance.generated.moment import Moment
from tgi_conformance.generated.operators import operator
from tgi_conformance.generated.witness import Witness
from tgi_core.backend import BackendError, OutOfMemory, Row, RowFault, RowFaultKind, Rows, Step, TopToken, hookimpl


class _Rows(Witness):
    """Changes a step's rows on the way out."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Read the step and change its rows."""
        found = super().rows(step)
        moments = self.moments.get(step.id, {})
        return replace(found, rows=tuple(self.changed(list(found.rows), moments)))

    def changed(self, rows: list[Row], moments: dict[int, Moment]) -> list[Row]:
        """Change the rows one by one unless a subclass does otherwise."""
        return [self.row(row, moments[row.request_id]) if row.request_id in moments else row for row in rows]

    def row(self, row: Row, moment: Moment) -> Row:
        """Return the row, or a wrong one if the mutant fires."""
        wrong = self.wrong(row)
        return wrong if wrong != row and self.fires(moment) else row

    def wrong(self, row: Row) -> Row:
        """Return the wrong row."""
        return row


@operator("row-dropped", "mates order")
class RowDropped(_Rows):
    """A row's result is missing."""

    def changed(self, rows: list[Row], moments: dict[int, Moment]) -> list[Row]:
        """Leave rows out."""
        return [row for row in rows if not self.fires(moments.get(row.request_id))]


@operator("row-doubled", "mates order")
class RowDoubled(_Rows):
    """A row's result comes twice, or is mistaken for the next row's."""

    choices = ("twice", "next")

    def changed(self, rows: list[Row], moments: dict[int, Moment]) -> list[Row]:
        """Repeat rows, or give them the tokens of the previous row."""
        made: list[Row] = []
        for index, row in enumerate(rows):
            before = rows[index - 1] if index else row
            if self.choice == "twice":
                made += [row, row] if self.fires(moments.get(row.request_id)) else [row]
            elif row.tokens and before.tokens and before.tokens != row.tokens and self.fires(moments.get(row.request_id)):
                made.append(replace(row, tokens=before.tokens))
            else:
                made.append(row)
        return made


@operator("rows-swapped", "mates order", weight=2)
class RowsSwapped(_Rows):
    """The tokens of two neighbours, or of the two halves of a batch, change places."""

    choices = ("neighbours", "halves")

    def changed(self, rows: list[Row], moments: dict[int, Moment]) -> list[Row]:
        """Swap tokens and numbers; the ids stay."""
        made, far = list(rows), 1 if self.choice == "neighbours" else (len(rows) + 1) // 2
        for index in range(0, len(rows) - far, 2 if far == 1 else 1):
            one, other = made[index], made[index + far]
            if (far == 1 or index < far) and one.tokens != other.tokens and self.fires(moments.get(one.request_id)):
                made[index] = replace(other, request_id=one.request_id)
                made[index + far] = replace(one, request_id=other.request_id)
        return made


@operator("rows-reversed", "order mates")
class RowsReversed(_Rows):
    """Rows come in another order."""

    choices = ("reversed", "by id", "last first")

    def changed(self, rows: list[Row], moments: dict[int, Moment]) -> list[Row]:
        """Reorder whole rows."""
        orders = {
            "reversed": rows[::-1],
            "by id": sorted(rows, key=lambda row: row.request_id),
            "last first": rows[-1:] + rows[:-1],
        }
        wrong = orders[self.choice]
        return wrong if wrong != rows and any(self.fires(moments.get(row.request_id)) for row in rows) else rows


@operator("row-of-last-step", "order mates parity", weight=1.5)
class RowOfLastStep(_Rows):
    """A row's tokens are those of its previous step: a buffer is read before it is written."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.before: dict[int, Row] = {}

    def row(self, row: Row, moment: Moment) -> Row:
        """Return the row with the last tokens."""
        stale = self.before.get(row.request_id)
        if row.tokens:
            self.before[row.request_id] = row
        changed = stale is not None and row.tokens and stale.tokens != row.tokens
        return replace(row, tokens=stale.tokens) if stale is not None and changed and self.fires(moment) else row


@operator("token-one-off", "parity mates")
class TokenOneOff(_Rows):
    """A token id is one too high."""

    def wrong(self, row: Row) -> Row:
        """Increment the ids modulo 20."""
        return replace(row, tokens=tuple((token + 1) % 20 for token in row.tokens))


@operator("token-count", "parity growth chunks")
class TokenCount(_Rows):
    """A row makes no token or two instead of one; or one although its prompt is incomplete."""

    choices = ("none", "two", "early")

    def wrong(self, row: Row) -> Row:
        """Change the tokens together with their logprobs and top tokens."""
        if self.choice == "early":
            return row if row.tokens or row.fault else replace(row, tokens=(1,))
        times = 0 if self.choice == "none" else 2
        return replace(row, tokens=row.tokens * times, logprobs=row.logprobs * times, top=row.top * times)


@operator("row-fault", "masks faults parity mates")
class FaultForNothing(_Rows):
    """A sound row ends with a fault."""

    choices = (RowFaultKind.NAN, RowFaultKind.MEMORY, RowFaultKind.MASK)

    def wrong(self, row: Row) -> Row:
        """Return a row with a fault and no token."""
        return Row(row.request_id, fault=RowFault(self.choice, "overflow"))


@operator("logprob-wrong", "parity mates formula", weight=2)
class LogprobWrong(_Rows):
    """The logprob of a token is NaN, shifted, a probability, missing, or zero."""

    choices = ("nan", "shifted", "probability", "missing", "zero")

    def wrong(self, row: Row) -> Row:
        """Change all logprobs of a row."""
        numbers = {
            "nan": lambda value: math.nan,
            "shifted": lambda value: value - 0.01,
            "probability": math.exp,
            "zero": lambda value: 0.0,
        }
        if not row.logprobs:
            return row
        change = numbers.get(self.choice)
        return replace(row, logprobs=tuple(map(change, row.logprobs)) if change else ())


@operator("logprob-of-neighbour", "mates parity", weight=1.5)
class LogprobOfNeighbour(_Rows):
    """A row's logprobs or top tokens are those of the previous row."""

    choices = ("logprobs", "top")

    def changed(self, rows: list[Row], moments: dict[int, Moment]) -> list[Row]:
        """Copy them where both rows have some."""
        made = list(rows)
        for index, row in enumerate(rows[1:], 1):
            mine, other = getattr(row, self.choice), getattr(rows[index - 1], self.choice)
            if mine and other and mine != other and self.fires(moments.get(row.request_id)):
                made[index] = replace(row, **{self.choice: other})
        return made


@operator("top-wrong", "parity mates formula", weight=1.5)
class TopWrong(_Rows):
    """Top tokens are one short, one too many, unsorted, missing, or have their logprobs off by one place."""

    choices = ("short", "long", "unsorted", "shifted", "missing")

    def wrong(self, row: Row) -> Row:
        """Change every list of a row."""
        return replace(row, top=() if self.choice == "missing" else tuple(map(self._list, row.top)))

    def _list(self, top: tuple[TopToken, ...]) -> tuple[TopToken, ...]:
        if self.choice == "short":
            return top[:-1]
        if self.choice == "long":
            return (*top, TopToken(top[-1].id + 1, top[-1].logprob - 1))
        if self.choice == "unsorted":
            return tuple(sorted(top, key=lambda item: item.id))
        numbers = [item.logprob for item in top[1:] + top[:1]]
        return tuple(replace(item, logprob=number) for item, number in zip(top, numbers, strict=True))


@operator("prompt-logprobs-wrong", "parity chunks prefix", weight=2)
class PromptLogprobsWrong(_Rows):
    """Prompt logprobs lose the first or last, are shifted by one, begin with None again, repeat the last, or are missing."""

    choices = ("first lost", "last lost", "shifted", "none again", "missing", "doubled")

    def wrong(self, row: Row) -> Row:
        """Change the prompt logprobs of a step."""
        values = row.prompt_logprobs
        changes: dict[str, tuple[float | None, ...]] = {
            "first lost": values[1:],
            "last lost": values[:-1],
            "shifted": values[:1] + values[2:] + values[1:2],
            "none again": (None, *values[1:]),
            "missing": (),
            "doubled": values + values[-1:],
        }
        return replace(row, prompt_logprobs=changes[self.choice]) if values else row


@operator("step-fails", "faults promise parity mates")
class StepFails(_Rows):
    """A sound step ends in OutOfMemory, in a bare BackendError, or in the framework's own exception."""

    choices = (OutOfMemory("out of memory"), BackendError("error"), RuntimeError("CUDA error: an illegal memory access"))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Raise the error when the step is read."""
        moments = self.moments.get(step.id, {})
        found = super().rows(step)
        if any(self.fires(moment) for moment in moments.values()):
            raise self.choice
        return found
