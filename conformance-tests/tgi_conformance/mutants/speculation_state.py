"""Drafts: blocks, steps launched ahead, rows that leave, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_conformance.mutants.speculation import Cut
from tgi_core.backend import Capacity, Grant, Handle, Progress, Row, Step, WarmupPlan, hookimpl
from tgi_core.backend.batch_tracker import RowInput, RowState


@mutant("computed-not-taken-back", "speculation.reject", "speculation.random")
class ComputedNotTakenBack(Sound):
    """The next token attends to the last draft that was rejected, whose position still counts as computed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stale: dict[int, int] = {}

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        if len(made.tokens) <= len(row_input.drafts):
            self._stale[made.request_id] = states[-1]
        return made

    def _run(self, row_input: RowInput) -> Row:
        stale = self._stale.pop(row_input.row.request.id, None)
        if stale is not None and row_input.start:
            self._slots[self._slot(row_input.row.tables[0], row_input.start - 1)] = stale
        return super()._run(row_input)


class Remembering(Sound):
    """Keeps the states of rejected drafts, by slot."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._left: dict[int, tuple[int, int]] = {}
        """States of rejected drafts, each with the request that left it."""

    def _verify(self, row_input: RowInput, states: list[int]) -> Row:
        made = super()._verify(row_input, states)
        for place in range(len(made.tokens), len(row_input.drafts) + 1):
            self._left[self._slot(row_input.row.tables[0], row_input.start + place)] = (made.request_id, states[place])
        return made


@mutant("rejected-stays-in-cache", "speculation.prefix")
class RejectedStaysInCache(Remembering):
    """A block becomes a prefix when it is full, with the keys and values of drafts, and is not entered again after they were rejected."""

    def _run(self, row_input: RowInput) -> Row:
        request, table = row_input.row.request, row_input.row.tables[0]
        for position in range(request.cached) if row_input.start == request.cached else ():
            slot = self._slot(table, position)
            if slot in self._left:
                self._slots[slot] = self._left[slot][1]
        return super()._run(row_input)


@mutant("rejected-counts-as-written", "speculation.continue")
class RejectedCountsAsWritten(Remembering):
    """A slot that a rejected draft has filled is not written by the block's next owner (a mark per slot that is never reset)."""

    def _write(self, row: RowState, position: int) -> int:
        slot = self._slot(row.tables[0], position)
        owner, stale = self._left.get(slot, (row.request.id, 0))
        state = super()._write(row, position)
        if owner != row.request.id:
            self._slots[slot] = state = stale
        return state


@mutant("drafts-past-block", "speculation.blocks")
class DraftsPastBlock(Sound):
    """The block of a row's newest token is taken for all positions of the step, so drafts beyond it overwrite its beginning."""

    def _write_drafts(self, row_input: RowInput) -> list[int]:
        table = row_input.row.tables[0]
        kept, here = list(table), row_input.start // self._block_size
        table[here + 1 :] = [table[here]] * (len(table) - here - 1)
        try:
            return super()._write_drafts(row_input)
        finally:
            table[:] = kept


@mutant("drafts-forgotten-by-filter", "speculation.drop")
class DraftsForgottenByFilter(Cut):
    """A filter makes a new batch, in which the drafts of the step in flight are not found."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._forgotten: set[int] = set()

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Forget them."""
        kept = super().filter(batch, keep)
        self._forgotten |= {row.request.id for row in self.live_batches.get(kept, ()) if row.drafting}
        return kept

    def count(self, row_input: RowInput) -> int:
        """Return none for rows that were filtered."""
        known = row_input.row.request.id in self._forgotten
        self._forgotten.discard(row_input.row.request.id)
        return 0 if known else len(row_input.drafts)


class Granting(Sound):
    """Changes grants before they are checked."""

    def granted(self, grant: Grant, row: RowState) -> Grant:
        """Return another grant."""
        return grant

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Decode with the changed grants."""
        return super().decode(batches, tuple(self._changed(grants)))

    def _changed(self, grants: Sequence[Grant]) -> list[Grant]:
        rows = [(grant, self.row(grant.request_id)) for grant in grants]
        return [grant if row is None else self.granted(grant, row) for grant, row in rows]


@mutant("waits-in-silence", "speculation.ahead")
class WaitsInSilence(Granting):
    """A row whose drafts are unread sits out a step that should run it, and the core believes that it has run."""

    def granted(self, grant: Grant, row: RowState) -> Grant:
        """Take 0."""
        return replace(grant, take=0, drafts=()) if row.drafting else grant


def _granting(name: str, origin: str, change: Callable[[Granting, Grant, RowState], Grant], *killed_by: str) -> None:
    """Register a mutant that changes grants."""
    mutant(name, *killed_by)(type(name, (Granting,), {"__doc__": origin, "granted": change}))


def _few(session: Granting, grant: Grant, row: RowState) -> Grant:
    kept = grant.drafts[: session.tracker._capacity.draft]
    return replace(grant, drafts=kept, take=1 + len(kept)) if len(kept) < len(grant.drafts) else grant


def _fitting(session: Granting, grant: Grant, row: RowState) -> Grant:
    room = max(0, session.tracker._capacity.max_row_tokens - row.computed - 1)
    kept = grant.drafts[:room]
    return replace(grant, drafts=kept, take=1 + len(kept)) if len(kept) < len(grant.drafts) else grant


def _folded(session: Granting, grant: Grant, row: RowState) -> Grant:
    return replace(grant, drafts=tuple(token % session._vocab_size for token in grant.drafts))


def _all_taken(session: Granting, grant: Grant, row: RowState) -> Grant:
    return replace(grant, take=1 + len(grant.drafts)) if grant.drafts else grant


def _chunk_instead(session: Granting, grant: Grant, row: RowState) -> Grant:
    return replace(grant, drafts=()) if row.prompt_left else grant


_granting(
    "drafts-cut-to-capacity", "More drafts than promised are silently cut.", _few, "speculation.refusal", "speculation.promise"
)
_granting("drafts-cut-to-row", "Drafts beyond the end of a row are silently cut.", _fitting, "speculation.limit")
_granting(
    "drafts-beyond-vocabulary",
    "A draft outside the vocabulary is folded into it (an embedding that clamps).",
    _folded,
    "speculation.refusal",
)
_granting("take-of-drafts-ignored", "The take of a row with drafts is not looked at.", _all_taken, "speculation.refusal")
_granting(
    "drafts-of-incomplete-prompt",
    "Drafts that come before a prompt is complete are passed over.",
    _chunk_instead,
    "speculation.refusal",
)


@mutant("drafts-unasked", "speculation.promise")
class DraftsUnasked(Sound):
    """A session promises the drafts that its drafter makes, whatever the plan says."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise five."""
        return super().warmup(replace(plan, draft=5), progress)
