"""Adapters on the wrong rows, or with bits that depend on the step."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_conformance.mutants.invariance import Shaken
from tgi_core.backend import (
    Capabilities,
    Capacity,
    Feature,
    Grant,
    Handle,
    Progress,
    Request,
    Step,
    Unsupported,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import LaunchedStep, RowInput, RowState


class Rerouted(Sound):
    """Runs rows under the adapter that `adapter` names."""

    def adapter(self, row: RowState, position: int) -> str | None:
        """Return the adapter of a row at a position."""
        return row.request.adapter

    def _write(self, row: RowState, position: int) -> int:
        kept = row.request
        row.request = replace(kept, adapter=self.adapter(row, position))
        try:
            return super()._write(row, position)
        finally:
            row.request = kept


@mutant("adapter-of-the-first", "lora.mates")
class AdapterOfTheFirst(Rerouted):
    """One adapter per step, that of its first row (a server that switches adapters between batches but still mixes them in one)."""

    def _compute(self, launch: LaunchedStep) -> None:
        self._first = launch.row_inputs[0].row.request.adapter if launch.row_inputs else None
        super()._compute(launch)

    def adapter(self, row: RowState, position: int) -> str | None:
        """Return the step's adapter."""
        return self._first


@mutant("adapters-swapped", "lora.tokens", "lora.mates")
class AdaptersSwapped(Rerouted):
    """Adapters count from zero on one side and from one on the other, and zero is the base model (Punica-style kernels)."""

    def adapter(self, row: RowState, position: int) -> str | None:
        """Return the next adapter."""
        names = self._adapters
        name = row.request.adapter
        return name if name is None else names[(names.index(name) + 1) % len(names)]


@mutant("adapter-on-plain-rows", "lora.mates")
class AdapterOnPlainRows(Rerouted):
    """Rows without an adapter get the last one loaded in the same step: a segment is never closed."""

    def _compute(self, launch: LaunchedStep) -> None:
        names = [row_input.row.request.adapter for row_input in launch.row_inputs if row_input.row.request.adapter]
        self._open = names[-1] if names else None
        super()._compute(launch)

    def adapter(self, row: RowState, position: int) -> str | None:
        """Return the row's own adapter, or the last one loaded."""
        return row.request.adapter or self._open


@mutant("prefix-forgets-adapter", "lora.same-prompt", "lora.mates")
class PrefixForgetsAdapter(Rerouted):
    """A prefix cache keyed by tokens alone: a prompt runs under the adapter it was first seen with (vLLM's block hash had to
    include it)."""

    def adapter(self, row: RowState, position: int) -> str | None:
        """Return the adapter of the first row with this prompt."""
        seen: dict[tuple[int, ...], str | None] = self.__dict__.setdefault("_seen", {})
        return seen.setdefault(row.request.tokens, row.request.adapter)


class Ending(Sound):
    """Rows lose their adapter along the way: `lost` says at which positions the state is wrong."""

    def lost(self, row: RowState, position: int) -> bool:
        """Return whether this position runs without its adapter."""
        return False

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if row.request.adapter is not None and self.lost(row, position):
            state ^= 1
            self._slots[self._slot(row.tables[0], position)] = state
        return state


@mutant("adapter-ends-with-prefix", "lora.prefix")
class AdapterEndsWithPrefix(Ending):
    """Tokens after a reused prefix run without the adapter: the lookup returns blocks and drops the adapter."""

    def lost(self, row: RowState, position: int) -> bool:
        """Every position of a row behind a prefix."""
        return row.request.cached > 0


@mutant("adapter-in-first-chunk", "lora.chunks")
class AdapterInFirstChunk(Ending):
    """The adapter is set up when a request arrives; later chunks of its prompt run without it."""

    def lost(self, row: RowState, position: int) -> bool:
        """Positions in later chunks."""
        return row.request.cached + row.request.take <= position < len(row.request.tokens)


@mutant("adapter-on-the-prompt", "lora.continue")
class AdapterOnThePrompt(Ending):
    """The adapter applies to the prompt only, so a continued request recomputes its generated tokens without it."""

    def lost(self, row: RowState, position: int) -> bool:
        """Tokens generated before the request was continued."""
        return row.request.prompt_len <= position < len(row.request.tokens)


@mutant("adapter-bits-by-tokens", "lora.continue")
class AdapterBitsByTokens(Shaken):
    """A library computes adapter products and adds in another order when a segment has more tokens: a request continued after a
    lost shard gets other last bits, and another token where two are close (this project's own CPU backend)."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Rows with an adapter that run more than one token."""
        return row_input.row.request.adapter is not None and row_input.take > 1


@mutant("adapter-bits-by-mates", "lora.continue")
class AdapterBitsByMates(Shaken):
    """Rows of one adapter are gathered into one product, whose order of additions depends on their number (grouped kernels)."""

    def shakes(self, launch: LaunchedStep, place: int, row_input: RowInput) -> bool:
        """Rows that share their adapter with another row."""
        name = row_input.row.request.adapter
        return name is not None and sum(other.row.request.adapter == name for other in launch.row_inputs) > 1


@mutant("adapter-sums-vary")
class AdapterSumsVary(AdapterBitsByTokens):
    """A correct twin: the same last bits, but batch invariance is not declared, so rounding is forgiven."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Return all capabilities but batch invariance."""
        found = super().capabilities()
        return replace(found, features=found.features - {Feature.BATCH_INVARIANT})


@mutant("adapters-unnamed", "lora.names")
class AdaptersUnnamed(Sound):
    """Adapters are loaded but not declared, so no client can learn which there are."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Return the capabilities without adapter names."""
        return replace(super().capabilities(), adapters=())


@mutant("unknown-adapter-is-base", "lora.refusal")
class UnknownAdapterIsBase(Sound):
    """A request for an adapter that is not loaded is silently served by the base model."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop unknown names."""
        known = tuple(request if request.adapter in self._adapters else replace(request, adapter=None) for request in batch)
        return super().prefill(known, cached, grants)


@mutant("claims-lora", "lora.tokens", "lora.names")
class ClaimsLora(Sound):
    """A false capability: lora is declared, but no adapter can be loaded (Bowtie's `incorrectly_claims_draft7`)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Raise an error if there are adapters."""
        if self._adapters:
            raise Unsupported("adapters are not built in")
        return super().warmup(plan, progress)

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Always declare lora."""
        found = super().capabilities()
        return replace(found, features=found.features | {Feature.LORA})
