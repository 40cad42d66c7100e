"""Limits and refusals."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import (
    BackendError,
    Capabilities,
    Capacity,
    CapacityExceeded,
    Feature,
    Grant,
    Handle,
    OutOfMemory,
    Progress,
    Request,
    Sampling,
    SamplingField,
    Step,
    WarmupPlan,
    hookimpl,
)


class Generous(Sound):
    """Enforces other limits than it promises."""

    def limits(self, promised: Capacity) -> Capacity:
        """Return the limits to enforce."""
        return promised

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise the usual limits."""
        promised = super().warmup(plan, progress)
        self.tracker._capacity = self.limits(promised)
        return promised


@mutant("rows-unlimited", "capacity.rows", "promise.brim")
class RowsUnlimited(Generous):
    """max_rows is not enforced."""

    def limits(self, promised: Capacity) -> Capacity:
        """Allow many more rows."""
        return replace(promised, max_rows=10**6)


@mutant("rows-one-less", "promise.brim", "capacity.returns", "capacity.rows")
class RowsOneLess(Generous):
    """One slot is kept for padding but still promised (TGI#3299)."""

    def limits(self, promised: Capacity) -> Capacity:
        """Allow one row less."""
        return replace(promised, max_rows=promised.max_rows - 1)


@mutant("step-unlimited", "capacity.step-tokens", "capacity.merge-tokens")
class StepUnlimited(Generous):
    """max_step_tokens is not checked: whether a step runs depends on memory."""

    def limits(self, promised: Capacity) -> Capacity:
        """Allow many more tokens."""
        return replace(promised, max_step_tokens=10**6)


@mutant("prefill-rows-unlimited", "capacity.prefill-rows")
class PrefillRowsUnlimited(Generous):
    """max_prefill_rows is promised for the graphs' sake, but wider steps are not refused."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise two."""
        return replace(super().warmup(plan, progress), max_prefill_rows=2)


@mutant("step-one-less", "promise.step")
class StepOneLess(Generous):
    """The check of a step's tokens uses < instead of <=."""

    def limits(self, promised: Capacity) -> Capacity:
        """Allow one token less."""
        return replace(promised, max_step_tokens=promised.max_step_tokens - 1)


@mutant("row-one-longer", "growth.to-the-end", "refusal.prompt")
class RowOneLonger(Generous):
    """Off by one: a row may have one token more than promised, and writes it where it has no position."""

    def limits(self, promised: Capacity) -> Capacity:
        """Allow one token more."""
        return replace(promised, max_row_tokens=promised.max_row_tokens + 1)


@mutant("row-one-shorter", "growth.to-the-end")
class RowOneShorter(Generous):
    """Off by one the other way: the last position is never reached."""

    def limits(self, promised: Capacity) -> Capacity:
        """Allow one token less."""
        return replace(promised, max_row_tokens=promised.max_row_tokens - 1)


@mutant("merge-unchecked", "capacity.merge-tokens")
class MergeUnchecked(Generous):
    """Limits are checked when requests arrive, but not when batches merge."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Decode without the step's limit."""
        kept = self.tracker._capacity
        self.tracker._capacity = replace(kept, max_step_tokens=10**6)
        try:
            return super().decode(batches, grants)
        finally:
            self.tracker._capacity = kept


@mutant("capacity-mistyped", "capacity.rows", "promise.brim")
class CapacityMistyped(Sound):
    """OutOfMemory instead of CapacityExceeded: the core shrinks its batches forever (TGI has one error for both)."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Raise OutOfMemory."""
        try:
            return super().prefill(batch, cached, grants)
        except CapacityExceeded as error:
            raise OutOfMemory(str(error)) from error


@mutant("out-of-memory-within", "promise.brim")
class OutOfMemoryWithin(Sound):
    """The cache is smaller than promised: the last blocks never exist (TGI#653, #1374)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Run out of memory when the session is full."""
        if sum(row.computed for rows in self.live_batches.values() for row in rows) > 300:
            raise OutOfMemory("no block is free")
        return super().decode(batches, grants)


@mutant("adapter-ignored", "lora.refusal", "lora.tokens")
class AdapterIgnored(Sound):
    """The backend ignores a field it does not know, so the client gets another model's answer."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop adapters."""
        return super().prefill(tuple(replace(request, adapter=None) for request in batch), cached, grants)


@mutant("media-ignored", "refusal.undeclared", "media.refusal")
class MediaIgnored(Sound):
    """Images are silently dropped, and the model describes nothing."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop media."""
        return super().prefill(tuple(replace(request, media=()) for request in batch), cached, grants)


@mutant("mask-ignored", "masks.no-source")
class MaskIgnored(Sound):
    """Without a mask source, a masked request runs unmasked."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Ignore masks."""
        free = self._masks is None
        return super().prefill(tuple(replace(request, masked=request.masked and not free) for request in batch), cached, grants)


@mutant("field-ignored", "refusal.undeclared")
class FieldIgnored(Sound):
    """An undeclared sampling field is dropped instead of refused."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare everything but typical-p."""
        found = super().capabilities()
        return replace(found, sampling=found.sampling - {SamplingField.TYPICAL_P})

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Set typical_p to 1."""
        dropped = tuple(replace(request, sampling=replace(request.sampling, typical_p=1.0)) for request in batch)
        return super().prefill(dropped, cached, grants)


@mutant("every-field", "open.fields")
class EveryField(Sound):
    """Declares all sampling fields of the installed contract, although its kernels only know those from when they were written."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare every field of the contract."""
        return replace(super().capabilities(), sampling=frozenset(SamplingField))


@mutant("chunk-runs-whole", "refusal.undeclared")
class ChunkRunsWhole(Sound):
    """Chunks are not declared, and a request with a chunk runs its whole prompt."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare everything but chunks."""
        found = super().capabilities()
        return replace(found, features=found.features - {Feature.CHUNKED_PREFILL})

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Take the rest of the prompt."""
        return super().prefill(
            tuple(replace(request, take=len(request.tokens) - request.cached) for request in batch), cached, grants
        )


@mutant("nonsense-sampled", "refusal.sampling")
class NonsenseSampled(Sound):
    """Sampling parameters out of range are replaced by valid ones."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Treat a temperature of 0 as greedy."""

        def sane(request: Request) -> Request:
            return replace(request, sampling=Sampling()) if request.sampling.temperature <= 0 else request

        return super().prefill(tuple(map(sane, batch)), cached, grants)


@mutant("empty-prompt", "refusal.prompt")
class EmptyPrompt(Sound):
    """An empty prompt gets a token chosen by the backend."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Use token 0."""

        def filled(request: Request) -> Request:
            return request if request.tokens else replace(request, tokens=(0,), prompt_len=1, take=1)

        return super().prefill(tuple(map(filled, batch)), cached, grants)


@mutant("message-of-many-lines", "refusal.prompt", "failure.prefill")
class MessageOfManyLines(Sound):
    """Error messages contain a stack trace."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Add a second line."""
        try:
            return super().prefill(batch, cached, grants)
        except BackendError as error:
            raise type(error)(f"{error}\n  at device.cpp:114") from error
