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
    """Checks against other limits than it promised."""

    def limits(self, promised: Capacity) -> Capacity:
        """What is checked."""
        return promised

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """The promise is as ever."""
        promised = super().warmup(plan, progress)
        self.ledger._capacity = self.limits(promised)
        return promised


@mutant("rows-unlimited", "capacity.rows", "promise.brim")
class RowsUnlimited(Generous):
    """max_rows is a wish."""

    def limits(self, promised: Capacity) -> Capacity:
        """Many more."""
        return replace(promised, max_rows=10**6)


@mutant("rows-one-less", "promise.brim", "capacity.returns", "capacity.rows")
class RowsOneLess(Generous):
    """One slot is kept for padding, and promised all the same (TGI#3299)."""

    def limits(self, promised: Capacity) -> Capacity:
        """One less."""
        return replace(promised, max_rows=promised.max_rows - 1)


@mutant("step-unlimited", "capacity.step-tokens", "capacity.merge-tokens")
class StepUnlimited(Generous):
    """max_step_tokens is not checked: the step runs, or does not, as memory allows."""

    def limits(self, promised: Capacity) -> Capacity:
        """Many more."""
        return replace(promised, max_step_tokens=10**6)


@mutant("prefill-rows-unlimited", "capacity.prefill-rows")
class PrefillRowsUnlimited(Generous):
    """max_prefill_rows is promised for the sake of the graphs, and nobody looks when a step is too wide for them."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Two."""
        return replace(super().warmup(plan, progress), max_prefill_rows=2)


@mutant("step-one-less", "promise.step")
class StepOneLess(Generous):
    """< for <= in the check of a step's tokens."""

    def limits(self, promised: Capacity) -> Capacity:
        """One less."""
        return replace(promised, max_step_tokens=promised.max_step_tokens - 1)


@mutant("row-one-longer", "growth.to-the-end", "refusal.prompt")
class RowOneLonger(Generous):
    """Length off by one: a row may have one token more than promised, and writes it where there is no position for it."""

    def limits(self, promised: Capacity) -> Capacity:
        """One more."""
        return replace(promised, max_row_tokens=promised.max_row_tokens + 1)


@mutant("row-one-shorter", "growth.to-the-end")
class RowOneShorter(Generous):
    """Length off by one the other way: the last position is never reached."""

    def limits(self, promised: Capacity) -> Capacity:
        """One less."""
        return replace(promised, max_row_tokens=promised.max_row_tokens - 1)


@mutant("merge-unchecked", "capacity.merge-tokens")
class MergeUnchecked(Generous):
    """Limits are checked where requests come in, not where batches merge."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Without the step's limit."""
        kept = self.ledger._capacity
        self.ledger._capacity = replace(kept, max_step_tokens=10**6)
        try:
            return super().decode(batches, grants)
        finally:
            self.ledger._capacity = kept


@mutant("capacity-mistyped", "capacity.rows", "promise.brim")
class CapacityMistyped(Sound):
    """Out of memory where "too many" is meant: the core shrinks its batches for ever (TGI's one error for both)."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """OutOfMemory."""
        try:
            return super().prefill(batch, cached, grants)
        except CapacityExceeded as error:
            raise OutOfMemory(str(error)) from error


@mutant("out-of-memory-within", "promise.brim")
class OutOfMemoryWithin(Sound):
    """The cache is smaller than promised: the last blocks are never there (TGI#653, #1374)."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """A full house runs out of memory."""
        if sum(row.computed for rows in self.books.values() for row in rows) > 300:
            raise OutOfMemory("no block is free")
        return super().decode(batches, grants)


@mutant("adapter-ignored", "lora.refusal", "lora.tokens")
class AdapterIgnored(Sound):
    """A field that this backend does not know is ignored, and the client gets another model's answer."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Adapters are dropped."""
        return super().prefill(tuple(replace(request, adapter=None) for request in batch), cached, grants)


@mutant("media-ignored", "refusal.undeclared", "media.refusal")
class MediaIgnored(Sound):
    """Images are dropped in silence, and the model talks about nothing."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Media are dropped."""
        return super().prefill(tuple(replace(request, media=()) for request in batch), cached, grants)


@mutant("mask-ignored", "masks.no-source")
class MaskIgnored(Sound):
    """Without a source of masks a masked request runs free."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Nobody looks."""
        free = self._masks is None
        return super().prefill(tuple(replace(request, masked=request.masked and not free) for request in batch), cached, grants)


@mutant("field-ignored", "refusal.undeclared")
class FieldIgnored(Sound):
    """An undeclared sampling field is dropped instead of refused."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Without typical-p."""
        found = super().capabilities()
        return replace(found, sampling=found.sampling - {SamplingField.TYPICAL_P})

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """typical_p is set to 1."""
        dropped = tuple(replace(request, sampling=replace(request.sampling, typical_p=1.0)) for request in batch)
        return super().prefill(dropped, cached, grants)


@mutant("every-field", "open.fields")
class EveryField(Sound):
    """Declares all sampling fields that the installed contract has, while its kernels know those of the day they were written."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Whatever there is."""
        return replace(super().capabilities(), sampling=frozenset(SamplingField))


@mutant("chunk-runs-whole", "refusal.undeclared")
class ChunkRunsWhole(Sound):
    """Chunks are not declared; a chunk that comes all the same runs the whole prompt."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Without chunks."""
        found = super().capabilities()
        return replace(found, features=found.features - {Feature.CHUNKED_PREFILL})

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """All that is left."""
        return super().prefill(
            tuple(replace(request, take=len(request.tokens) - request.cached) for request in batch), cached, grants
        )


@mutant("nonsense-sampled", "refusal.sampling")
class NonsenseSampled(Sound):
    """Sampling that makes no sense is replaced by something that does."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """A temperature of 0 is greedy."""

        def sane(request: Request) -> Request:
            return replace(request, sampling=Sampling()) if request.sampling.temperature <= 0 else request

        return super().prefill(tuple(map(sane, batch)), cached, grants)


@mutant("empty-prompt", "refusal.prompt")
class EmptyPrompt(Sound):
    """An empty prompt is given a token of the backend's own."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Token 0."""

        def filled(request: Request) -> Request:
            return request if request.tokens else replace(request, tokens=(0,), prompt_len=1, take=1)

        return super().prefill(tuple(map(filled, batch)), cached, grants)


@mutant("message-of-many-lines", "refusal.prompt", "failure.prefill")
class MessageOfManyLines(Sound):
    """Errors with a stack trace for a message."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Two lines."""
        try:
            return super().prefill(batch, cached, grants)
        except BackendError as error:
            raise type(error)(f"{error}\n  at device.cpp:114") from error
