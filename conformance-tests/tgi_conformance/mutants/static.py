"""Devices that compile a program per shape."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Capabilities, Capacity, Mixing, Progress, WarmupPlan, hookimpl


@mutant("undecided-blocks", "open.promise")
class UndecidedBlocks(Sound):
    """No block size is declared, since warm-up decides it, but a block does not hold a row."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare none."""
        return replace(super().capabilities(), block_sizes=())

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Use blocks of 16."""
        rows, longest = plan.max_rows or 8, plan.max_row_tokens or 64
        return super().warmup(replace(plan, block_size=16, num_blocks=rows * -(-longest // 16)), progress)


@mutant("unsorted-takes", "open.promise")
class UnsortedTakes(Sound):
    """Takes are promised in the order of compilation, the largest program first."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise two sizes."""
        return replace(super().warmup(plan, progress), takes=(16, 8))


@mutant("mixes-chunks", "chunks.apart")
class MixesChunks(Sound):
    """New prompts are refused next to rows that decode, as mixing is not declared, but later chunks of them are not."""

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Declare no mixing."""
        return replace(super().capabilities(), mixing=Mixing.NONE)

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Enforce nothing."""
        promised = super().warmup(plan, progress)
        self.tracker._capabilities = replace(self.capabilities(), mixing=Mixing.EAGER)
        return promised
