"""Ranks that do not agree. The reference backend runs on one; the twin here runs as many copies of the toy as there are ranks."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Capabilities, Capacity, Feature, Grant, Handle, OutOfMemory, Progress, Step, WarmupPlan, hookimpl
from tgi_core.backend.ledger import LiveRow


class Grouped(Sound):
    """Declares tensor parallelism."""

    several_ranks = True

    @property
    def rank(self) -> int:
        """Its own."""
        return self.options.group.rank

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Ranks beside all else."""
        found = super().capabilities()
        return replace(found, features=found.features | {Feature.TENSOR_PARALLEL})


@mutant("two-ranks")
class TwoRanks(Grouped):
    """Every rank runs the whole model: no gain, and legal."""


@mutant("ranks-declared", "ranks.refusal")
class RanksDeclared(Grouped):
    """A lie about a capability: tensor_parallel is declared, and a group is refused."""

    several_ranks = False


@mutant("ranks-promise-apart", "ranks.refusal", "ranks.tokens")
class RanksPromiseApart(Grouped):
    """Each rank promises what its own memory holds (vLLM takes the smallest number of blocks over its workers for this reason)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """One block less on rank 1."""
        promised = super().warmup(plan, progress)
        group = promised.groups[0]
        return replace(promised, groups=(replace(group, num_blocks=group.num_blocks - self.rank),))


@mutant("ranks-add-twice", "ranks.tokens", "ranks.verbs")
class RanksAddTwice(Grouped):
    """A bias that every rank adds before the sum over the ranks (the row-parallel layer of more than one server)."""

    def _write(self, row: LiveRow, position: int) -> int:
        state = super()._write(row, position)
        if self.options.group.world > 1:
            state ^= 1
            self._slots[self._slot(row.tables[0], position)] = state
        return state


@mutant("rank-fails-alone", "ranks.verbs")
class RankFailsAlone(Grouped):
    """One rank has less room for a merge than the others, and is the only one to refuse it."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Rank 1 runs out of memory."""
        if self.rank and len(batches) > 1:
            raise OutOfMemory("no room for the merged batch")
        return super().decode(batches, grants)
