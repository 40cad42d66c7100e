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
from tgi_core.backend.ledger import Launch, LiveRow, Work


class Rerouted(Sound):
    """Runs rows under the adapter that `adapter` names."""

    def adapter(self, row: LiveRow, position: int) -> str | None:
        """A row's at a position."""
        return row.request.adapter

    def _write(self, row: LiveRow, position: int) -> int:
        kept = row.request
        row.request = replace(kept, adapter=self.adapter(row, position))
        try:
            return super()._write(row, position)
        finally:
            row.request = kept


@mutant("adapter-of-the-first", "lora.mates")
class AdapterOfTheFirst(Rerouted):
    """One adapter per step: that of its first row (a server that switches adapters between batches, and batches all the same)."""

    def _compute(self, launch: Launch) -> None:
        self._first = launch.work[0].row.request.adapter if launch.work else None
        super()._compute(launch)

    def adapter(self, row: LiveRow, position: int) -> str | None:
        """Of the step."""
        return self._first


@mutant("adapters-swapped", "lora.tokens", "lora.mates")
class AdaptersSwapped(Rerouted):
    """Adapters are numbered from zero on one side and from one on the other, where zero is the model alone (Punica-style kernels)."""

    def adapter(self, row: LiveRow, position: int) -> str | None:
        """The next one's."""
        names = self._adapters
        name = row.request.adapter
        return name if name is None else names[(names.index(name) + 1) % len(names)]


@mutant("adapter-on-plain-rows", "lora.mates")
class AdapterOnPlainRows(Rerouted):
    """Rows without an adapter get the one that is loaded last in the same step: a segment that was never closed."""

    def _compute(self, launch: Launch) -> None:
        names = [work.row.request.adapter for work in launch.work if work.row.request.adapter]
        self._open = names[-1] if names else None
        super()._compute(launch)

    def adapter(self, row: LiveRow, position: int) -> str | None:
        """Its own, or the open one."""
        return row.request.adapter or self._open


@mutant("prefix-forgets-adapter", "lora.same-prompt", "lora.mates")
class PrefixForgetsAdapter(Rerouted):
    """A prefix cache of its own whose key is the tokens alone: a prompt is served under the adapter that it was first seen with (vLLM's
    block hash had to learn of the adapter)."""

    def adapter(self, row: LiveRow, position: int) -> str | None:
        """That of the first row with this prompt."""
        seen: dict[tuple[int, ...], str | None] = self.__dict__.setdefault("_seen", {})
        return seen.setdefault(row.request.tokens, row.request.adapter)


class Ending(Sound):
    """Rows that lose their adapter on the way: the state of a position is another one where `lost` says so."""

    def lost(self, row: LiveRow, position: int) -> bool:
        """Whether the model alone runs here."""
        return False

    def _write(self, row: LiveRow, position: int) -> int:
        state = super()._write(row, position)
        if row.request.adapter is not None and self.lost(row, position):
            state ^= 1
            self._slots[self._slot(row.tables[0], position)] = state
        return state


@mutant("adapter-ends-with-prefix", "lora.prefix")
class AdapterEndsWithPrefix(Ending):
    """What follows a reused prefix runs without the adapter: the lookup returns blocks and forgets whose they are."""

    def lost(self, row: LiveRow, position: int) -> bool:
        """Behind a prefix."""
        return row.request.cached > 0


@mutant("adapter-in-first-chunk", "lora.chunks")
class AdapterInFirstChunk(Ending):
    """The adapter is set up where a request comes in; later chunks of its prompt run without."""

    def lost(self, row: LiveRow, position: int) -> bool:
        """Later chunks."""
        return row.request.cached + row.request.take <= position < len(row.request.tokens)


@mutant("adapter-on-the-prompt", "lora.continue")
class AdapterOnThePrompt(Ending):
    """The adapter goes by the length of the prompt: tokens that were made before a request was continued are computed without it, although
    it made them."""

    def lost(self, row: LiveRow, position: int) -> bool:
        """Tokens made elsewhere."""
        return row.request.prompt_len <= position < len(row.request.tokens)


@mutant("adapter-bits-by-tokens", "lora.continue")
class AdapterBitsByTokens(Shaken):
    """The adapters' products are a library's, which adds in another order when a segment has more tokens: a request that goes on after a
    lost shard makes other last bits, and where two tokens are close another token (this project's own CPU backend)."""

    def shakes(self, launch: Launch, place: int, work: Work) -> bool:
        """Rows with an adapter that run more than one token."""
        return work.row.request.adapter is not None and work.take > 1


@mutant("adapter-bits-by-mates", "lora.continue")
class AdapterBitsByMates(Shaken):
    """Rows of one adapter are gathered into one product, whose order of additions is chosen by their number (grouped kernels)."""

    def shakes(self, launch: Launch, place: int, work: Work) -> bool:
        """Rows whose adapter another row has too."""
        name = work.row.request.adapter
        return name is not None and sum(other.row.request.adapter == name for other in launch.work) > 1


@mutant("adapter-sums-vary")
class AdapterSumsVary(AdapterBitsByTokens):
    """A good twin: the same last bits, and batch invariance is not declared, so that rounding is forgiven."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """All but that."""
        found = super().capabilities()
        return replace(found, features=found.features - {Feature.BATCH_INVARIANT})


@mutant("adapters-unnamed", "lora.names")
class AdaptersUnnamed(Sound):
    """Adapters are loaded and not declared: no client can be told which there are."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """No names."""
        return replace(super().capabilities(), adapters=())


@mutant("unknown-adapter-is-base", "lora.refusal")
class UnknownAdapterIsBase(Sound):
    """A name that is not loaded is served by the model alone, without a word."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Unknown names are dropped."""
        known = tuple(request if request.adapter in self._adapters else replace(request, adapter=None) for request in batch)
        return super().prefill(known, cached, grants)


@mutant("claims-lora", "lora.tokens", "lora.names")
class ClaimsLora(Sound):
    """A lie about a capability: adapters are declared, and none can be loaded (Bowtie's `incorrectly_claims_draft7`)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Adapters that were named are too many."""
        if self._adapters:
            raise Unsupported("adapters are not built in")
        return super().warmup(plan, progress)

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Always."""
        found = super().capabilities()
        return replace(found, features=found.features | {Feature.LORA})
