"""Batches: where TGI's own backends disagree, and mistakes that forks made."""

from __future__ import annotations

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import (
    EMPTY,
    BackendError,
    Cleared,
    Grant,
    Handle,
    Request,
    Step,
    UnknownBatch,
    UnknownRequest,
    hookimpl,
)


@mutant("filter-clears-others", "isolation.filter", "isolation.filter-empty", "machine.laws")
class FilterClearsOthers(Sound):
    """TGI's Neuron generator: filter clears every slot that is not in keep, whatever its batch."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Remove rows of other batches too."""
        kept = super().filter(batch, keep)
        for other in [handle for handle in self.live_batches if handle != kept]:
            self.tracker.clear(other)
        return kept


@mutant("filter-nothing-clears-all", "isolation.filter-empty")
class FilterNothingClearsAll(Sound):
    """TGI's Neuron generator: filter with nothing to keep clears everything and returns an empty batch."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Clear everything if nothing is kept."""
        kept = super().filter(batch, keep)
        if not keep:
            self.tracker.clear(None)
        return kept


@mutant("filter-nothing-refused", "isolation.filter-empty", "drop.after-prefill")
class FilterNothingRefused(Sound):
    """TGI's CUDA server: filter with nothing to keep is a ValueError."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Raise an error outside the contract."""
        if not keep:
            raise ValueError("Batch must have at least one request")
        return super().filter(batch, keep)


@mutant("filter-compares-counts", "isolation.ids-not-counts")
class FilterComparesCounts(Sound):
    """TGI's CUDA and Gaudi servers: as many ids as rows means all of them, whatever the ids."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep all rows without comparing ids."""
        if len(keep) == len(self.live_batches.get(batch, ())):
            keep = tuple(row.request.id for row in self.live_batches[batch])
        return super().filter(batch, keep)


@mutant("filter-loses-batch", "failure.filter", "isolation.ids-not-counts")
class FilterLosesBatch(Sound):
    """TGI's CUDA server: an unknown id is a KeyError after the batch was popped from the cache."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Drop the batch when a filter is refused."""
        try:
            return super().filter(batch, keep)
        except UnknownRequest:
            self.tracker.clear(batch)
            raise


@mutant("filter-echoes-strangers", "isolation.ids-not-counts")
class FilterEchoesStrangers(Sound):
    """TGI's Neuron generator: ids that the batch does not have are echoed back as if they were kept."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Silently drop unknown ids."""
        known = {row.request.id for row in self.live_batches.get(batch, ())}
        return super().filter(batch, tuple(id for id in keep if id in known))


@mutant("filter-keeps-handle", "handles.after-filter")
class FilterKeepsHandle(Sound):
    """TGI's servers return the batch itself when all rows are kept, so its handle still works after its single use."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Return the same handle again."""
        if (
            len(keep)
            == len({row.request.id for row in self.live_batches.get(batch, ())} & set(keep))
            == len(self.live_batches.get(batch, ()))
        ):
            return batch
        return super().filter(batch, keep)


@mutant("filter-keeps-the-first", "isolation.which-row", "mates.filter")
class FilterKeepsTheFirst(Sound):
    """A batch is compacted by count: the first rows survive, not those named (vllm#3945 had a similar bug with swapped blocks)."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep the right ids with the wrong rows."""
        rows = self.live_batches.get(batch, [])
        kept = super().filter(batch, keep)
        for row, other in zip(self.live_batches.get(kept, ()), rows, strict=False):
            row.tokens, row.computed = list(other.tokens), other.computed
            for table, blocks in zip(row.tables, other.tables, strict=True):
                table[:] = blocks
        return kept


@mutant("decode-clears-unlisted", "isolation.decode")
class DecodeClearsUnlisted(Sound):
    """TGI's Neuron generator: a live batch that decode does not list has its slots cleared."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Drop all other batches."""
        step = super().decode(batches, grants)
        for other in [handle for handle in self.live_batches if handle != step.handle]:
            self.tracker.clear(other)
        return step


@mutant("unlisted-row-advances", "isolation.decode", "isolation.prefill")
class UnlistedRowAdvances(Sound):
    """A device with fixed slots runs all of them in each step and advances every cursor (TGI#3248)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Run the last token of every other row twice."""
        others = [row for handle, rows in self.live_batches.items() if handle not in batches for row in rows]
        step = super().decode(batches, grants)
        for row in others:
            if len(row.tokens) > row.computed:
                row.tokens.append(row.tokens[-1])
        return step


@mutant("clear-by-birth-id", "clear.one")
class ClearByBirthId(Sound):
    """TGI's Neuron generator: clear takes the id that a batch had at prefill, although decode gives it a new one."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Silently miss batches that decode has renamed."""
        if (
            batch is not None
            and batch in self.live_batches
            and any(row.computed > len(row.request.tokens) for row in self.live_batches[batch])
        ):
            return Cleared(0)
        return super().clear(batch)


@mutant("clear-miscounts", "clear.all", "clear.one")
class ClearMiscounts(Sound):
    """Clear counts batches instead of rows."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Count one per batch."""
        count = len(self.live_batches) if batch is None else 1
        super().clear(batch)
        return Cleared(count)


@mutant("clear-of-nothing-refused", "clear.none", "clear.all")
class ClearOfNothingRefused(Sound):
    """Clear is not idempotent: clearing an empty session is an error."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Raise UnknownBatch if there are no live batches."""
        if batch is None and not self.live_batches:
            raise UnknownBatch("there is no batch")
        return super().clear(batch)


@mutant("clear-all-leaves-one", "clear.all")
class ClearAllLeavesOne(Sound):
    """A dict changes while it is iterated: the newest batch stays behind (the counterpart of TGI#283's "Batch ID 0 not found")."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Keep the newest batch alive but count its rows."""
        if batch is not None or not self.live_batches:
            return super().clear(batch)
        rows = sum(map(len, self.live_batches.values()))
        for handle in list(self.live_batches)[: max(1, len(self.live_batches) - 1)]:
            self.tracker.clear(handle)
        return Cleared(rows)


@mutant("failing-decode-loses-batch", "failure.decode", "machine.laws")
class FailingDecodeLosesBatch(Sound):
    """TGI's CUDA and Gaudi servers pop batches from the cache before checking anything."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Drop the named batches when a decode is refused."""
        try:
            return super().decode(batches, grants)
        except BackendError:
            for handle in batches:
                self.live_batches.pop(handle, None)
            raise


@mutant("failing-decode-grants", "failure.decode")
class FailingDecodeGrants(Sound):
    """Blocks are appended to the tables before the step is checked, so a retry appends them twice (an early version of this
    project)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Keep the first grant of a refused decode."""
        try:
            return super().decode(batches, grants)
        except BackendError:
            row = self.row(grants[0].request_id) if grants else None
            if row is not None:
                for table, more in zip(row.tables, grants[0].blocks, strict=False):
                    table[:0] = [block for block in more if block not in table]
            raise


@mutant("failing-prefill-admits", "failure.prefill", "refusal.undeclared")
class FailingPrefillAdmits(Sound):
    """Requests are admitted one by one: the good ones before a bad one stay, and their ids are taken."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Keep the first request of a refused prefill."""
        try:
            return super().prefill(batch, cached, grants)
        except BackendError:
            if len(batch) > 1:
                super().prefill(batch[:1], EMPTY, ())
            raise


@mutant("failing-join-loses-batch", "failure.join")
class FailingJoinLosesBatch(Sound):
    """A prefill removes the batch it joins from the cache, then fails (TGI's prefill with a cached batch)."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop the joined batch."""
        try:
            return super().prefill(batch, cached, grants)
        except BackendError:
            self.live_batches.pop(cached, None)
            raise


@mutant("any-error-ends-session", "failure.filter", "failure.decode")
class AnyErrorEndsSession(Sound):
    """TGI's interceptor shuts the server down on any RuntimeError; Gaudi's copy calls exit(1)."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """End the session if an id is wrong."""
        try:
            return super().filter(batch, keep)
        except BackendError:
            self.live_batches.clear()
            raise

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """End the session if an error occurs."""
        try:
            return super().decode(batches, grants)
        except BackendError:
            self.live_batches.clear()
            raise
