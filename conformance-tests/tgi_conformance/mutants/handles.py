"""Handles."""

from __future__ import annotations

from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import EMPTY, Cleared, Grant, Handle, InvalidRequest, Request, Step, UnknownBatch, hookimpl


@mutant("stale-handle-accepted", "handles.after-decode", "machine.laws")
class StaleHandleAccepted(Sound):
    """The cache is looked up by request, so an old handle still finds its rows."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._renamed: dict[Handle, Handle] = {}

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Replace every handle with its successor."""
        step = super().decode(tuple(self._now(handle) for handle in batches), grants)
        self._renamed |= dict.fromkeys(batches, step.handle)
        return step

    def _now(self, handle: Handle) -> Handle:
        while handle in self._renamed and handle not in self.live_batches:
            handle = self._renamed[handle]
        return handle


@mutant("merge-keeps-second-handle", "handles.after-merge")
class MergeKeepsSecondHandle(Sound):
    """Merging empties only the first batch; the second handle still names its rows (confused in TGI's early concatenate)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Leave the second batch to be cleared or filtered again."""
        rows = {handle: self.live_batches.get(handle, []) for handle in batches[1:]}
        step = super().decode(batches, grants)
        self.live_batches.update(rows)
        return step


@mutant("join-keeps-handle", "handles.after-join")
class JoinKeepsHandle(Sound):
    """Prefill copies the batch it joins instead of taking it over."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Keep the old handle valid."""
        rows = self.live_batches.get(cached, [])
        step = super().prefill(batch, cached, grants)
        if cached != EMPTY:
            self.live_batches[cached] = rows
        return step


@mutant("same-batch-twice", "handles.distinct", "failure.decode")
class SameBatchTwice(Sound):
    """A set of handles replaces the required list: the same batch twice counts as once."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Drop duplicates."""
        return super().decode(tuple(dict.fromkeys(batches)), grants)


@mutant("cleared-handle-lives", "handles.after-clear")
class ClearedHandleLives(Sound):
    """Clear frees the rows but leaves an empty batch under the handle."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Keep the handle of an empty batch."""
        count = super().clear(batch)
        if batch is not None:
            self.live_batches[batch] = []
        return count


@mutant("unknown-handle-untyped", "handles.strangers")
class UnknownHandleUntyped(Sound):
    """TGI's servers: an unknown batch id is a bare ValueError, "Batch ID 0 not found in cache" (TGI#283)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Raise an error outside the contract."""
        try:
            return super().decode(batches, grants)
        except UnknownBatch as error:
            raise ValueError(str(error)) from error


@mutant("unknown-handle-mistyped", "handles.strangers", "handles.after-decode")
class UnknownHandleMistyped(Sound):
    """One error type for everything: callers cannot tell a stale handle from a bad argument."""

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Raise InvalidRequest instead of UnknownBatch."""
        try:
            return super().clear(batch)
        except UnknownBatch as error:
            raise InvalidRequest(str(error)) from error


@mutant("none-result", "handles.after-filter", "isolation.filter")
class NoneResult(Sound):
    """A stub that returns nothing (ONNX Runtime PR#29924)."""

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Any:
        """Do the work, but return None."""
        super().filter(batch, keep)


@mutant("live-id-accepted", "failure.live-id")
class LiveIdAccepted(Sound):
    """A request with the id of a live one replaces it."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Skip the comparison of ids."""
        self.tracker._live.difference_update(request.id for request in batch)
        return super().prefill(batch, cached, grants)
