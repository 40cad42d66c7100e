"""Blocks, grants and takes."""

from __future__ import annotations

from dataclasses import replace

from tgi_conformance.mutants.base import Sound, mutant
from tgi_core.backend import Grant, Handle, Request, Step, hookimpl


@mutant("writes-past-block", "cover.neighbours", "growth.blocks")
class WritesPastBlock(Sound):
    """The last position of a block is written to the first slot of the next block in memory (an off-by-one in a slot mapping)."""

    def _slot(self, table: list[int], position: int) -> int:
        inside = position % self._block_size
        block = table[position // self._block_size]
        return (
            block * self._block_size + (inside if inside < self._block_size - 1 else self._block_size)
            if self._block_size > 1
            else block
        )


@mutant("grant-prepends", "growth.blocks", "cover.neighbours")
class GrantPrepends(Sound):
    """New blocks are inserted at the wrong end of the table."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Move them to the front."""
        step = super().decode(batches, grants)
        for grant in grants:
            row = self.row(grant.request_id)
            if row is not None and grant.blocks and grant.blocks[0]:
                count = len(grant.blocks[0])
                row.tables[0][:] = row.tables[0][-count:] + row.tables[0][:-count]
        return step


@mutant("early-grant-lost", "growth.ahead")
class EarlyGrantLost(Sound):
    """Only the first block of a grant is used, which is correct as long as blocks come one at a time."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Drop the rest, and use the last block for all of them."""
        step = super().decode(batches, grants)
        for grant in grants:
            row = self.row(grant.request_id)
            if row is not None and grant.blocks and len(grant.blocks[0]) > 1:
                extra = len(grant.blocks[0]) - 1
                row.tables[0][-extra:] = [row.tables[0][-extra - 1]] * extra
        return step


@mutant("take-0-advances", "growth.sit-out")
class TakeZeroAdvances(Sound):
    """A take of 0 is treated as no grant."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Let the row take its usual token if its blocks allow it."""

        def usual(grant: Grant) -> Grant:
            row = self.row(grant.request_id)
            fits = row is not None and not row.prompt_left and row.computed + 1 <= len(row.tables[0]) * self._block_size
            return replace(grant, take=1) if grant.take == 0 and fits else grant

        return super().decode(batches, tuple(map(usual, grants)))


@mutant("two-at-a-time", "growth.one-token", "speculation.refusal")
class TwoAtATime(Sound):
    """A take above the limit is silently cut."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Reduce 2 to 1."""

        def cut(grant: Grant) -> Grant:
            row = self.row(grant.request_id)
            return replace(grant, take=min(grant.take, row.prompt_left or 1)) if row is not None else grant

        return super().decode(batches, tuple(map(cut, grants)))


@mutant("uncovered-step", "cover.decode", "cover.prefill")
class UncoveredStep(Sound):
    """Positions beyond the granted blocks silently go to the row's last block."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Use the last block twice."""
        named = {grant.request_id for grant in grants}
        for row in (row for handle in batches for row in self.live_batches.get(handle, ())):
            if row.request.id not in named and row.computed >= len(row.tables[0]) * self._block_size:
                row.tables[0].append(row.tables[0][-1])
        return super().decode(batches, grants)

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Make up missing blocks."""

        def covered(request: Request) -> Request:
            table = request.blocks[0] if request.blocks else ()
            missing = -(-(request.cached + request.take) // self._block_size) - len(table)
            if missing <= 0 or not request.blocks:
                return request
            spare = [block for block in range(1, 90) if block not in table][:missing]
            return replace(request, blocks=((*table, *spare), *request.blocks[1:]))

        return super().prefill(tuple(map(covered, batch)), cached, grants)


@mutant("null-block-accepted", "cover.block-ids")
class NullBlockAccepted(Sound):
    """Block 0 exists on this device, so it is accepted like any other."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Replace it with another block."""

        def named(request: Request) -> Request:
            return replace(request, blocks=tuple(tuple(block or 90 for block in table) for table in request.blocks))

        return super().prefill(tuple(map(named, batch)), cached, grants)


@mutant("double-block-accepted", "cover.distinct")
class DoubleBlockAccepted(Sound):
    """Tables are not checked: a row overwrites a block that appears twice in its table."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop the second mention."""
        return super().prefill(
            tuple(replace(item, blocks=tuple(tuple(dict.fromkeys(table)) for table in item.blocks)) for item in batch),
            cached,
            grants,
        )


@mutant("extra-group-ignored", "cover.groups")
class ExtraGroupIgnored(Sound):
    """Only the first group of blocks is checked."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Drop the other groups."""
        return super().prefill(tuple(replace(item, blocks=item.blocks[:1]) for item in batch), cached, grants)
