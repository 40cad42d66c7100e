"""KV cache management: blocks are allocated as rows grow, shared between equal prefixes, and released when rows leave."""

from __future__ import annotations

from tgi_core.backend import CacheGroup, CacheKind
from tgi_core.blocks import Blocks, CacheBlocks
from tgi_core.scheduler.prefix import PrefixIndex
from tgi_core.scheduler.sequence import Sequence

_BY_POSITION = {CacheKind.FULL, CacheKind.WINDOW}


class RowMemory:
    """Block tables of sequences, allocated from a pool per group. With `reuse`, full blocks are shared once their tokens have
    been read. `prefixes` defaults to a new index."""

    def __init__(self, groups: tuple[CacheGroup, ...], reuse: bool, prefixes: PrefixIndex | None = None) -> None:
        self._groups = groups
        self.pools = CacheBlocks(groups)
        self.stride = self.pools.stride
        sizes = {group.block_size for group in groups}
        alike = len(sizes) == 1 and all(group.kind in _BY_POSITION for group in groups)
        self.reusing = reuse and alike
        self.prefixes = prefixes or PrefixIndex(self.stride)

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a row that has the cache to itself."""
        return self.pools.max_row_tokens

    @property
    def longest_prompt(self) -> int:
        """Maximum number of tokens of a prompt, if it has a limit of its own."""
        return self.pools.max_prompt_tokens

    @property
    def total(self) -> int:
        """Number of blocks of the smallest group."""
        return self.pools.total

    @property
    def free(self) -> int:
        """Number of blocks that can be allocated, including those of idle prefixes."""
        return self.pools.free + self.prefixes.idle

    def fits(self, sequence: Sequence, positions: int, spare: int = 0) -> bool:
        """Return whether a row can get blocks for `positions` positions with `spare` blocks left."""
        return self.pools.fits(self.pools.missing(sequence.tables, positions), spare - self.prefixes.idle)

    def extend(self, sequence: Sequence, positions: int) -> Blocks:
        """Allocate the blocks that a row lacks for `positions` positions; check `fits` first."""
        counts = self.pools.missing(sequence.tables, positions)
        while not self.pools.fits(counts):
            self._evict()
        blocks = self.pools.allocate(counts)
        for table, more in zip(sequence.tables, blocks, strict=True):
            table.extend(more)
        return blocks

    def shrink(self, sequence: Sequence, blocks: Blocks) -> None:
        """Undo the last `extend`."""
        for table, more in zip(sequence.tables, blocks, strict=True):
            del table[len(table) - len(more) :]
        self.pools.release(blocks)

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a row; those in the prefix index remain as idle prefixes."""
        entries = sequence.entries
        own = [
            [block for place, block in enumerate(table) if place >= len(entries) or entries[place] is None]
            for table in sequence.tables
        ]
        self.pools.release(own)
        for entry in reversed(entries):
            if entry is not None:
                self.prefixes.drop(entry)
        self.clear(sequence)

    def clear(self, sequence: Sequence) -> None:
        """Reset a row to having no blocks."""
        sequence.tables = tuple([] for _ in self._groups)
        sequence.entries = []
        sequence.enter_at = self._next_entry(0)

    def reuse(self, sequence: Sequence) -> int:
        """Give a row without blocks the cached ones of its longest known prefix. Return the number of tokens they hold.

        At least one token is left to compute, and a row that wants prompt logprobs reuses nothing.
        """
        if not self.reusing or sequence.request.want.prompt_logprobs:
            return 0
        entries = self.prefixes.find(self._keys(sequence))
        for group, table in enumerate(sequence.tables):
            table.extend(entry.blocks[group] for entry in entries)
        sequence.entries = list(entries)
        sequence.enter_at = self._next_entry(len(entries))
        return len(entries) * self.stride

    def enter(self, sequence: Sequence) -> None:
        """Add to the prefix index the full blocks that a row has certainly written: those of all its tokens but the newest. Called once
        the newest has been read."""
        keys = self._keys(sequence)
        for place in range(len(sequence.entries), len(keys)):
            blocks = tuple(table[place] for table in sequence.tables)
            sequence.entries.append(self.prefixes.add(keys[place], blocks))
        sequence.enter_at = self._next_entry(len(keys))

    def forget(self) -> None:
        """Clear the prefix index after the loss of the device's memory. No row may have blocks."""
        while self.prefixes.idle:
            self._evict()

    def _evict(self) -> None:
        self.pools.release([(block,) for block in self.prefixes.evict()])

    def _next_entry(self, full: int) -> int:
        """Return the number of tokens that a row must have before block number `full` + 1 can enter the prefix index."""
        return (full + 1) * self.stride + 1 if self.reusing else 1 << 62

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """Return a key for each full block of all tokens but the newest. Tokens are only appended, so known keys stay valid."""
        if not sequence.root:
            sequence.root = self.prefixes.root(sequence.request.scheduling.salt, sequence.request.adapter)
        count = (len(sequence.tokens) - 1) // self.stride
        self.prefixes.extend(sequence.keys, sequence.root, sequence.tokens, count, sequence.request.image_spans)
        return sequence.keys
