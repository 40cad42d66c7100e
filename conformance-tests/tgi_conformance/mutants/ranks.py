"""Ranks that disagree. The reference backend runs on one rank; the twin here runs one copy of the toy per rank."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Capabilities, Capacity, Feature, Grant, Handle, OutOfMemory, Progress, Step, WarmupPlan, hookimpl
from tgi_core.backend.batch_tracker import RowState


class Grouped(Sound):
    """Declares tensor parallelism."""

    several_ranks = True

    @property
    def rank(self) -> int:
        """The session's own rank."""
        return self.options.group.rank

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Return the capabilities with tensor parallelism."""
        found = super().capabilities()
        return replace(found, features=found.features | {Feature.TENSOR_PARALLEL})


@mutant("two-ranks")
class TwoRanks(Grouped):
    """Every rank runs the whole model, which is useless but allowed."""


@mutant("ranks-declared", "ranks.refusal")
class RanksDeclared(Grouped):
    """A false capability: tensor_parallel is declared, but a group is refused."""

    several_ranks = False


@mutant("ranks-promise-apart", "ranks.refusal", "ranks.tokens")
class RanksPromiseApart(Grouped):
    """Each rank promises what fits its own memory (why vLLM takes the smallest number of blocks over its workers)."""

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise one block less on rank 1."""
        promised = super().warmup(plan, progress)
        group = promised.groups[0]
        return replace(promised, groups=(replace(group, num_blocks=group.num_blocks - self.rank),))


@mutant("ranks-add-twice", "ranks.tokens", "ranks.verbs")
class RanksAddTwice(Grouped):
    """Every rank adds the bias before the sum over the ranks (the row-parallel layer of more than one server)."""

    def _write(self, row: RowState, position: int) -> int:
        state = super()._write(row, position)
        if self.options.group.world > 1:
            state ^= 1
            self._slots[self._slot(row.tables[0], position)] = state
        return state


@mutant("rank-fails-alone", "ranks.verbs")
class RankFailsAlone(Grouped):
    """One rank has less room for a merge than the others, and only that rank refuses it."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Run out of memory on rank 1."""
        if self.rank and len(batches) > 1:
            raise OutOfMemory("no room for the merged batch")
        return super().decode(batches, grants)
