"""Allocation of KV cache blocks, per cache group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tgi_core.backend import NULL_BLOCK, CacheGroup, CacheKind

UNLIMITED = 1 << 62
"""A number of tokens that no row has."""

ONE_BLOCK = frozenset({CacheKind.STATE, CacheKind.CROSS})
"""Kinds of cache of which a row has one block, however long it is."""

Blocks = tuple[tuple[int, ...], ...]
"""One tuple of block ids per cache group."""


class BlockPool:
    """Allocator for blocks 1…num_blocks of one group. Allocation is all or nothing."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_ids = deque(range(1, num_blocks + 1))
        self._used: set[int] = set()

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self.free_ids)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Allocate `count` blocks. Raises ValueError, and allocates none, if fewer are free."""
        if count > len(self.free_ids):
            raise ValueError(f"{count} blocks requested, {len(self.free_ids)} free")
        blocks = tuple(self.free_ids.popleft() for _ in range(count))
        self._used.update(blocks)
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Free blocks. Raises ValueError for a block that is not in use."""
        for block in blocks:
            if block not in self._used:
                raise ValueError(f"block {block} is not in use")
            self._used.remove(block)
            self.free_ids.append(block)


def most_window_blocks(group: CacheGroup, take: int) -> int:
    """Maximum number of blocks of a WINDOW group that a row has at once if no step runs more than `take` of its tokens."""
    if group.window is None:
        return UNLIMITED
    return -(-(group.window + take - 2) // group.block_size) + 1


def longest_row(group: CacheGroup, take: int) -> int:
    """Length in tokens of the longest row that has a group to itself if no step runs more than `take` of its tokens. A window that fits
    whole sets no limit."""
    fits_window = group.kind is CacheKind.WINDOW and most_window_blocks(group, take) <= group.num_blocks
    return UNLIMITED if fits_window else group.num_blocks * group.block_size


class CacheBlocks:
    """Block pools of all cache groups. No step runs more than `most_take` tokens of a row."""

    def __init__(self, groups: tuple[CacheGroup, ...], most_take: int = UNLIMITED) -> None:
        self._groups, self._most_take = groups, most_take
        self.pools = tuple(BlockPool(group.num_blocks) for group in groups)
        self._once = tuple(group.kind in ONE_BLOCK for group in groups)
        """Whether a row has one block of a group, however long it is."""
        self._most = tuple(
            most_window_blocks(group, most_take) if group.kind is CacheKind.WINDOW else UNLIMITED for group in groups
        )
        """Maximum number of blocks that a row has at once."""
        growing = [place for place, once in enumerate(self._once) if not once]
        full = [place for place in growing if groups[place].kind is CacheKind.FULL]
        self._counted = full or growing or list(range(len(groups)))
        self.stride = min((groups[place].block_size for place in growing), default=UNLIMITED)
        """Smallest block size: a row needs a new block at most once per this many positions."""

    @property
    def free(self) -> int:
        """Number of free blocks in the group with the fewest; see `total`."""
        return self.free_with((0,) * len(self.pools))

    def free_with(self, idle: Sequence[int]) -> int:
        """The same, if each group has `idle` more blocks that can be freed."""
        return min(self.pools[place].free + idle[place] for place in self._counted)

    @property
    def total(self) -> int:
        """Number of blocks in the smallest group, of those that keep all positions if there are any; else of those that grow with
        positions, if there are any."""
        return min(self.pools[place].num_blocks for place in self._counted)

    @property
    def max_row_tokens(self) -> int:
        """Length in tokens of the longest row that fits into an empty cache."""
        growing = (group for group, once in zip(self._groups, self._once, strict=True) if not once)
        return min((longest_row(group, self._most_take) for group in growing), default=UNLIMITED)

    @property
    def max_prompt_tokens(self) -> int:
        """Length in tokens of the longest prompt, if the model's encoder has a limit of its own."""
        return min((group.block_size for group in self._groups if group.kind is CacheKind.CROSS), default=UNLIMITED)

    def missing(self, tables: tuple[list[int], ...], positions: int) -> tuple[int, ...]:
        """Number of blocks that each group's table still needs to cover `positions` positions."""
        counts = (1 if once else -(-positions // group.block_size) for group, once in zip(self._groups, self._once, strict=True))
        return tuple(max(0, count - len(table)) for count, table in zip(counts, tables, strict=True))

    def missing_at_once(self, tables: tuple[list[int], ...], positions: int) -> tuple[int, ...]:
        """The same, if blocks are taken back as the row leaves them behind: at most what it has at once."""
        return tuple(map(min, self.missing(tables, positions), self._most))

    def fits(self, counts: Sequence[int], spare: int = 0, idle: Sequence[int] = ()) -> bool:
        """Whether every group has its count of blocks free or `idle`, and `spare` more where rows grow."""
        return all(
            count + spare * (not once) <= pool.free + more
            for count, pool, once, more in zip(counts, self.pools, self._once, idle or (0,) * len(self.pools), strict=True)
        )

    def allocate(self, counts: Sequence[int]) -> Blocks:
        """Allocate blocks in every group; check `fits` first."""
        return tuple(pool.allocate(count) for count, pool in zip(counts, self.pools, strict=True))

    def release(self, tables: Iterable[Iterable[int]]) -> None:
        """Free blocks in every group. Places with the null block hold none."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.release(block for block in table if block != NULL_BLOCK)
