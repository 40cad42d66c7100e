"""KV cache management: blocks are allocated as rows grow, shared between equal prefixes, and released when rows leave.

Of a group with a window, blocks are also taken back while their row runs, once its next step sees none of their positions: steps take
effect in order, so even those in flight have read a block before another row writes to it.
"""

from __future__ import annotations

from tgi_core.backend import NULL_BLOCK, CacheGroup, CacheKind
from tgi_core.blocks import UNLIMITED, Blocks, CacheBlocks
from tgi_core.scheduler.prefix import PrefixIndex
from tgi_core.scheduler.sequence import Sequence

_BY_POSITION = {CacheKind.FULL, CacheKind.WINDOW}


class RowMemory:
    """Block tables of sequences, allocated from a pool per group. With `reuse`, full blocks are shared once their tokens have
    been read. No step runs more than `most_take` tokens of a row.

    Each group has a prefix index. `prefixes` is that of the group that keeps whole prefixes, a new one by default.
    """

    def __init__(
        self, groups: tuple[CacheGroup, ...], reuse: bool, prefixes: PrefixIndex | None = None, most_take: int = UNLIMITED
    ) -> None:
        self._groups = groups
        self.pools = CacheBlocks(groups, most_take)
        self.stride = self.pools.stride
        sizes = {group.block_size for group in groups}
        alike = len(sizes) == 1 and all(group.kind in _BY_POSITION for group in groups)
        self.reusing = reuse and alike
        self.prefixes = prefixes or PrefixIndex(self.stride)
        windowed = [group.kind is CacheKind.WINDOW and group.window is not None for group in groups]
        self._windowed = [place for place, window in enumerate(windowed) if window]
        self._whole = [place for place, window in enumerate(windowed) if not window]
        leading = (self._whole or self._windowed)[0]
        self.indexes = tuple(
            self.prefixes if place == leading else PrefixIndex(self.stride, self.prefixes.secret) for place in range(len(groups))
        )

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a row that has the cache to itself."""
        return self.pools.max_row_tokens

    @property
    def longest_prompt(self) -> int:
        """Maximum number of tokens of a prompt, if it has a limit of its own."""
        return self.pools.max_prompt_tokens

    @property
    def windowed(self) -> bool:
        """Whether blocks of running rows are taken back."""
        return bool(self._windowed)

    @property
    def total(self) -> int:
        """Number of blocks; see `CacheBlocks.total`."""
        return self.pools.total

    @property
    def free(self) -> int:
        """Number of blocks that can be allocated, including those of idle prefixes."""
        return self.pools.free_with(self._idle)

    @property
    def window_usage(self) -> float:
        """Used fraction of the fullest group with a window; 0 without one."""
        idle, pools = self._idle, self.pools.pools
        used = (1 - (pools[place].free + idle[place]) / pools[place].num_blocks for place in self._windowed)
        return max(used, default=0.0)

    def fits(self, sequence: Sequence, positions: int) -> bool:
        """Return whether a row can get blocks for `positions` positions."""
        missing = self.pools.missing(sequence.tables, positions)
        return not any(missing) or self.pools.fits(missing, idle=self._idle)

    def has_room(self, sequence: Sequence, positions: int, spare: int) -> bool:
        """Return whether a row that starts can get blocks, in all its steps up to `positions` positions, with `spare` blocks left."""
        return self.pools.fits(self.pools.missing_at_once(sequence.tables, positions), spare, self._idle)

    def extend(self, sequence: Sequence, positions: int) -> Blocks:
        """Allocate the blocks that a row lacks for `positions` positions; check `fits` first."""
        counts = self.pools.missing(sequence.tables, positions)
        for place, (count, pool) in enumerate(zip(counts, self.pools.pools, strict=True)):
            while count > pool.free:
                self._evict(place)
        blocks = self.pools.allocate(counts)
        for table, more in zip(sequence.tables, blocks, strict=True):
            table.extend(more)
        return blocks

    def shrink(self, sequence: Sequence, blocks: Blocks) -> None:
        """Undo the last `extend`."""
        for table, more in zip(sequence.tables, blocks, strict=True):
            del table[len(table) - len(more) :]
        self.pools.release(blocks)

    def release_unseen(self, sequence: Sequence) -> None:
        """Take back the blocks of a row that its next step, from its first position that is not computed on, does not see. Those in
        the prefix index remain there."""
        for group in self._windowed:
            first, last = sequence.unseen[group], self._groups[group].unseen(sequence.computed)
            if first < last:
                self._release_from(sequence, group, range(first, last))
                sequence.unseen[group] = last

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a row; those in the prefix index remain as idle prefixes."""
        for group, table in enumerate(sequence.tables):
            self._release_from(sequence, group, range(len(table) - 1, -1, -1))
        self.clear(sequence)

    def clear(self, sequence: Sequence) -> None:
        """Reset a row to having no blocks."""
        sequence.tables = tuple([] for _ in self._groups)
        sequence.entries = tuple([] for _ in self._groups)
        sequence.unseen = [0] * len(self._groups)
        sequence.enter_at = self._next_entry(0)

    def reuse(self, sequence: Sequence) -> int:
        """Give a row without blocks the cached ones of its longest known prefix. Return the number of tokens they hold.

        At least one token is left to compute, and a row that wants prompt logprobs reuses nothing.
        """
        if not self.reusing or sequence.request.want.prompt_logprobs:
            return 0
        keys = self._keys(sequence)
        depth = self._depth(keys)
        for place, (group, index) in enumerate(zip(self._groups, self.indexes, strict=True)):
            unseen = sequence.unseen[place] = group.unseen(depth * self.stride)
            entries = index.find(keys[unseen:depth])
            sequence.tables[place].extend([NULL_BLOCK] * unseen + [entry.block for entry in entries])
            sequence.entries[place].extend([*[None] * unseen, *entries])
        sequence.enter_at = self._next_entry(depth)
        return depth * self.stride

    def enter(self, sequence: Sequence, positions: int = UNLIMITED) -> None:
        """Add to the prefix index the full blocks that a row has certainly written: those of its first `positions` positions, or of
        all its tokens but the newest. Called once the step has been read that wrote the last of them."""
        keys = self._keys(sequence)
        count = min(len(keys), positions // self.stride)
        for table, entries, index in zip(sequence.tables, sequence.entries, self.indexes, strict=True):
            for place in range(len(entries), count):
                block = table[place]
                entries.append(None if block == NULL_BLOCK else index.add(keys[place], block))
        sequence.enter_at = self._next_entry(len(sequence.entries[0]))

    def forget(self) -> None:
        """Clear the prefix index after the loss of the device's memory. No row may have blocks."""
        for group, index in enumerate(self.indexes):
            while index.idle:
                self._evict(group)

    @property
    def _idle(self) -> list[int]:
        return [index.idle for index in self.indexes]

    def _evict(self, group: int) -> None:
        self.pools.pools[group].release([self.indexes[group].evict()])

    def _release_from(self, sequence: Sequence, group: int, places: range) -> None:
        """Release a row's blocks at some places of a table, in this order."""
        table, entries, index = sequence.tables[group], sequence.entries[group], self.indexes[group]
        own, entered = list[int](), len(entries)
        for place in places:
            block, table[place] = table[place], NULL_BLOCK
            entry = entries[place] if place < entered else None
            if entry is not None:
                index.drop(entry)
                entries[place] = None
            elif block != NULL_BLOCK:
                own.append(block)
        self.pools.pools[group].release(own)

    def _depth(self, keys: list[bytes]) -> int:
        """Return the number of first blocks that a prefix can be continued after: each group has all of them that it then sees."""
        depth, entries = len(keys), [index.entries for index in self.indexes]
        for place in self._whole:
            depth = next((number for number, key in enumerate(keys[:depth]) if key not in entries[place]), depth)
        if not self._windowed:
            return depth
        found, runs = 0, dict.fromkeys(self._windowed, 0)
        for number, key in enumerate(keys[:depth], 1):
            for place in runs:
                runs[place] = runs[place] + 1 if key in entries[place] else 0
            if all(run >= number - self._groups[place].unseen(number * self.stride) for place, run in runs.items()):
                found = number
        return found

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
