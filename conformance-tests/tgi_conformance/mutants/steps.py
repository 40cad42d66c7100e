"""Steps, takes, blocks and rows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import EMPTY, Grant, Handle, Request, Rows, Step, hookimpl
from tgi_core.backend.batch_tracker import RowInput


@mutant("rows-out-of-order", "order.batch")
class RowsOutOfOrder(Sound):
    """Rows are sorted by request id, which is correct until batches merge in reverse order."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Sort the rows."""
        found = super().rows(step)
        return replace(found, rows=tuple(sorted(found.rows, key=lambda row: row.request_id)))


@mutant("rows-of-another-step", "order.run-ahead", "open.first-step")
class RowsOfAnotherStep(Sound):
    """Steps are counted from zero on one side and from one on the other."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Label the rows with the step before."""
        return replace(super().rows(step), step=step.id - 1)


@mutant("rows-read-twice", "order.read-once")
class RowsReadTwice(Sound):
    """Results are kept forever: a step can be read again, and its memory is never freed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: dict[int, Rows] = {}

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return rows from the archive."""
        if step.id not in self._kept:
            self._kept[step.id] = super().rows(step)
        return self._kept[step.id]


@mutant("row-missing-when-merged", "order.batch", "mates.merge")
class RowMissingWhenMerged(Sound):
    """The result of the last row is cut off when several batches merge (a slice that ends one early)."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Drop a row from a step of more than three."""
        found = super().rows(step)
        return replace(found, rows=found.rows[:-1]) if len(found.rows) > 3 else found


@mutant("run-ahead-stale-token", "order.run-ahead", "order.filter-ahead")
class RunAheadStaleToken(Sound):
    """A step launched before the last was read gets that step's input token again, not its output (seen while porting to async)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Repeat the newest token of rows whose step is unread."""
        if self._launched:
            for row in (row for handle in batches for row in self.live_batches.get(handle, ())):
                if row.computed == len(row.tokens) and row.computed >= len(row.request.tokens):
                    row.tokens.append(row.tokens[-1])
        return super().decode(batches, grants)


@mutant("join-ahead-stale-token", "order.join-ahead")
class JoinAheadStaleToken(Sound):
    """New rows join a batch whose step is unread, and its rows run their last input token again."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Repeat tokens only if a step is unread."""
        for row in self.live_batches.get(cached, ()) if self._launched else ():
            if row.computed == len(row.tokens):
                row.tokens.append(row.tokens[-1])
        return super().prefill(batch, cached, grants)


@mutant("late-row-writes-last", "drop.reuse-ahead")
class LateRowWritesLast(Sound):
    """The writes of a dropped row in a step in flight land after those of the next step (a second stream without an event)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: list[tuple[int, list[int]]] = []

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Note the blocks, and the newest step in flight."""
        if self._launched:
            under_way = self._launched[-1].step.id
            rows = [row for row in self.live_batches.get(batch, ()) if row.request.id not in keep]
            self._late += [(under_way, list(row.tables[0])) for row in rows]
        return super().filter(batch, keep)

    def _compute(self, launch: Any) -> None:
        super()._compute(launch)
        for _, blocks in (late for late in self._late if late[0] < launch.step.id):
            for block in blocks:
                self._slots[block * self._block_size : (block + 1) * self._block_size] = [7] * self._block_size
        self._late = [late for late in self._late if late[0] >= launch.step.id]


@mutant("dropped-row-runs-on", "drop.filtered", "isolation.which-row")
class DroppedRowRunsOn(Sound):
    """A slot is freed on the host but stays active on the device: its results keep coming."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep the rows in the batch; only the handle is new."""
        rows = list(self.live_batches.get(batch, ()))
        kept = super().filter(batch, keep)
        if keep:
            self.live_batches[kept] = rows
        return kept


@mutant("dropped-row-writes-late", "drop.reuse-after-filter", "drop.reuse-after-clear")
class DroppedRowWritesLate(Sound):
    """A freed row's cache is wiped during the next step, when its blocks have a new owner (a lazy zeroing kernel)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._to_wipe: list[int] = []

    def _before(self) -> None:
        self._held = {block for rows in self.live_batches.values() for row in rows for block in row.tables[0]}

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Note what will be wiped."""
        self._before()
        kept = super().filter(batch, keep)
        self._note()
        return kept

    @hookimpl
    def clear(self, batch: Handle | None) -> Any:
        """Note what will be wiped."""
        self._before()
        count = super().clear(batch)
        self._note()
        return count

    def _note(self) -> None:
        self._to_wipe += self._held - {block for rows in self.live_batches.values() for row in rows for block in row.tables[0]}

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Wipe blocks after the step that follows the drop."""
        found = super().rows(step)
        size = self._block_size
        for block in self._to_wipe:
            self._slots[block * size : (block + 1) * size] = [0] * size
        self._to_wipe.clear()
        return found


@mutant("late-row-kept-place", "drop.after-prefill", "capacity.returns")
class LeakAtPrefill(Sound):
    """A request that ends with its first token is never removed from the running set (finish at prefill, several engines)."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep its place taken."""
        lost = [
            row
            for row in self.live_batches.get(batch, ())
            if row.computed == len(row.request.tokens) and row.request.id not in keep
        ]
        kept = super().filter(batch, keep)
        self.tracker._live.update(-row.request.id for row in lost)
        return kept


@mutant("handles-reused", "handles.after-decode")
class HandlesReused(Sound):
    """A small pool of handle ids: a stale one soon names another batch."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Issue the first handle taken again."""
        step = super().decode(batches, grants)
        rows = self.live_batches.pop(step.handle)
        self.live_batches[batches[0]] = rows
        return Step(step.id, batches[0])


@mutant("swapped-on-merge", "mates.merge", "order.batch", "machine.laws")
class SwappedOnMerge(Sound):
    """The tokens of the first rows change places when batches merge (in paiml/aprender#659 all rows answered alike)."""

    def _compute(self, launch: Any) -> None:
        super()._compute(launch)
        outcome = self._done.get(launch.step.id)
        if isinstance(outcome, Rows) and getattr(self, "_merged", None) == launch.step.id and len(outcome.rows) > 1:
            first, second, *rest = outcome.rows
            swapped = (replace(first, tokens=second.tokens), replace(second, tokens=first.tokens), *rest)
            self._done[launch.step.id] = replace(outcome, rows=swapped)

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Note a merge."""
        step = super().decode(batches, grants)
        if len(batches) > 1:
            self._merged = step.id
        return step


@mutant("one-answer-for-all", "mates.together", "parity.greedy")
class OneAnswerForAll(Sound):
    """All batched requests get the same answer (paiml/aprender#659)."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return the first row's tokens for every row."""
        found = super().rows(step)
        first = found.rows[0].tokens if found.rows else ()
        return replace(found, rows=tuple(replace(row, tokens=first) if row.tokens and first else row for row in found.rows))


@mutant("mates-shift-logits", "mates.together", "mates.filter")
class MatesShiftLogits(Sound):
    """Padding for the longest row leaks into the others: a row's tokens depend on how many rows run."""

    def _compute(self, launch: Any) -> None:
        self._beside = len(launch.row_inputs)
        super()._compute(launch)

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        return super()._sample(row_input, state ^ (0 if self._beside == 1 else self._beside << 40))


@mutant("twins-share-cache", "mates.same-prompt")
class TwinsShareCache(Sound):
    """A cache keyed by the prompt alone: two rows with the same prompt share a cursor."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Replace the later twin's newest token, as if it shared the earlier one's first block."""
        step = super().decode(batches, grants)
        seen: dict[tuple[int, ...], list[int]] = {}
        for row in self.live_batches.get(step.handle, ()):
            first = seen.setdefault(row.request.tokens, row.tables[0])
            if first is not row.tables[0]:
                row.tokens[-1:] = [first[0] % self._vocab_size]
        return step


@mutant("step-ids-repeat", "order.run-ahead", "open.first-step")
class StepIdsRepeat(Sound):
    """Steps are numbered per batch, so two of them have the same id."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Always return step 1."""
        self._numbers = itertools.count(2)
        step = super().prefill(batch, cached, grants)
        self._real = {1: step}
        return Step(1, step.handle)

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Always return step 1."""
        step = super().decode(batches, grants)
        self._real = {1: step}
        return Step(1, step.handle)

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Read the step launched last."""
        real = self._real.get(step.id, step)
        return replace(super().rows(real), step=step.id)


@mutant("empty-is-a-batch", "isolation.filter-empty")
class EmptyIsABatch(Sound):
    """Filter with nothing to keep returns a handle without rows instead of EMPTY."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Return a handle that names nothing."""
        kept = super().filter(batch, keep)
        return Handle(10**6 + batch.id) if kept == EMPTY else kept
