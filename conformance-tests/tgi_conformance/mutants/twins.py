"""Correct twins: unusual but allowed. No clause may fail them."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import (
    Capabilities,
    Capacity,
    Determinism,
    Feature,
    Mixing,
    Progress,
    Rows,
    SamplingField,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.batch_tracker import RowInput


@mutant("synchronous")
class Synchronous(Sound):
    """Lock step: every step is computed when it is launched."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, asynchronous=False, **options)


@mutant("random-handles")
class RandomHandles(Sound):
    """Handle and step ids in no particular order."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use ids that jump around and never repeat, since the factor is odd."""
        promised = super().warmup(plan, progress)
        self.tracker._handles = (number * 617_394_821 % 2**31 for number in itertools.count(1))  # type: ignore[assignment]
        return promised


@mutant("slow")
class Slow(Sound):
    """Reading a step takes a while."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Wait a fifth of a millisecond."""
        time.sleep(0.0002)
        return super().rows(step)


@mutant("larger-capacity")
class LargerCapacity(Sound):
    """More of everything than requested."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Ask for larger limits."""
        more = replace(plan, max_rows=9, max_row_tokens=80, max_step_tokens=128, num_blocks=300)
        return super().warmup(more, progress)


@mutant("tiny-blocks")
class TinyBlocks(Sound):
    """One block per token."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no other size."""
        return replace(super().capabilities(), block_sizes=(1,))

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use blocks of 1 even if the plan leaves the size open."""
        return super().warmup(replace(plan, block_size=1), progress)


@mutant("large-blocks")
class LargeBlocks(Sound):
    """Blocks that are longer than most rows."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no other size."""
        return replace(super().capabilities(), block_sizes=(128,))

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use blocks of 128 even if the plan leaves the size open."""
        return super().warmup(replace(plan, block_size=128), progress)


@mutant("slots")
class Slots(Sound):
    """A device with fixed slots: a block holds a whole row, and nothing can be chunked, mixed or shared."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no block size: warm-up decides it."""
        found = super().capabilities()
        features = found.features - {Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE}
        return replace(found, block_sizes=(), features=features, mixing=Mixing.NONE)

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise as many slots as rows, and programs for prompts of three sizes."""
        length = plan.max_row_tokens or 64
        wanted = replace(plan, block_size=length, max_row_tokens=length, num_blocks=plan.max_rows)
        promised = super().warmup(wanted, progress)
        takes = {size for size in (length // 4, length // 2, length) if 1 <= size <= promised.max_step_tokens}
        return replace(promised, takes=tuple(sorted(takes)), in_flight=1)


@mutant("chunks-apart")
class ChunksApart(Sound):
    """A device that runs prompts in chunks, in programs of their own: a step holds chunks or rows that decode."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no mixing."""
        return replace(super().capabilities(), mixing=Mixing.NONE)

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise the sizes of the programs."""
        promised = super().warmup(plan, progress)
        return replace(promised, takes=tuple(size for size in (8, 16, 32) if size <= promised.max_step_tokens))


@mutant("modest")
class Modest(Sound):
    """Declares nothing beyond text-core."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no features, no sampling fields and no seeds."""
        found = super().capabilities()
        return replace(found, features=frozenset(), sampling=frozenset(), mixing=Mixing.NONE, determinism=Determinism.NONE)


@mutant("repeatable")
class Repeatable(Sound):
    """Seeds are repeatable, with the backend's own generator: determinism SELF."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Do not declare the published formula."""
        return replace(
            super().capabilities(),
            determinism=Determinism.SELF,
            sampling=frozenset({SamplingField.SEED, SamplingField.LOGIT_BIAS}),
        )

    def _sample(self, row_input: RowInput, state: int) -> dict[str, Any]:
        row, kept = row_input.row, row_input.row.request
        row.request = replace(kept, sampling=replace(kept.sampling, seed=(kept.sampling.seed * 31 + 7) % 2**64))
        try:
            return super()._sample(row_input, state)
        finally:
            row.request = kept


@mutant("reversed-inside")
class ReversedInside(Sound):
    """A step's rows are computed last to first, but reported in order."""

    def _compute(self, launch: Any) -> None:
        super()._compute(replace(launch, row_inputs=tuple(reversed(launch.row_inputs))))
        outcome = self._done[launch.step.id]
        if isinstance(outcome, Rows):
            self._done[launch.step.id] = replace(outcome, rows=tuple(reversed(outcome.rows)))


@mutant("late-rows-kept-back")
class LateRowsKeptBack(Sound):
    """A dropped row is left out of the results of the step that still contained it."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Return only live rows."""
        found = super().rows(step)
        live = {row.request.id for rows in self.live_batches.values() for row in rows}
        return replace(found, rows=tuple(row for row in found.rows if row.request_id in live))


@mutant("three-ahead")
class ThreeAhead(Sound):
    """Up to four steps may be unread."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise in_flight 4."""
        return replace(super().warmup(plan, progress), in_flight=4)


@mutant("one-draft")
class OneDraft(Sound):
    """Allows fewer drafts than the plan asks for."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise at most one."""
        return super().warmup(replace(plan, draft=min(plan.draft, 1)), progress)
