"""Allocation of KV cache blocks, per cache group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tgi_core.backend import CacheGroup, CacheKind

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


class CacheBlocks:
    """Block pools of all cache groups."""

    def __init__(self, groups: tuple[CacheGroup, ...]) -> None:
        self._groups = groups
        self.pools = tuple(BlockPool(group.num_blocks) for group in groups)
        self._once = tuple(group.kind in ONE_BLOCK for group in groups)
        """Whether a row has one block of a group, however long it is."""
        growing = [each for each in zip(groups, self.pools, strict=True) if each[0].kind not in ONE_BLOCK]
        self._growing = tuple(pool for _, pool in growing) or self.pools
        self.stride = min((group.block_size for group, _ in growing), default=UNLIMITED)
        """Smallest block size: a row needs a new block at most once per this many positions."""

    @property
    def free(self) -> int:
        """Number of free blocks in the group with the fewest, of those that grow with positions if there are any."""
        return min(pool.free for pool in self._growing)

    @property
    def total(self) -> int:
        """Number of blocks in the smallest group, of those that grow with positions if there are any."""
        return min(pool.num_blocks for pool in self._growing)

    @property
    def max_row_tokens(self) -> int:
        """Length in tokens of the longest row that fits into an empty cache."""
        return min(
            (group.num_blocks * group.block_size for group, once in zip(self._groups, self._once, strict=True) if not once),
            default=UNLIMITED,
        )

    @property
    def max_prompt_tokens(self) -> int:
        """Length in tokens of the longest prompt, if the model's encoder has a limit of its own."""
        return min((group.block_size for group in self._groups if group.kind is CacheKind.CROSS), default=UNLIMITED)

    def missing(self, tables: tuple[list[int], ...], positions: int) -> tuple[int, ...]:
        """Number of blocks that each group's table still needs to cover `positions` positions."""
        counts = (1 if once else -(-positions // group.block_size) for group, once in zip(self._groups, self._once, strict=True))
        return tuple(max(0, count - len(table)) for count, table in zip(counts, tables, strict=True))

    def fits(self, counts: tuple[int, ...], spare: int = 0) -> bool:
        """Whether every group has its count of blocks free, and `spare` more where rows grow."""
        return all(
            count + spare * (not once) <= pool.free for count, pool, once in zip(counts, self.pools, self._once, strict=True)
        )

    def allocate(self, counts: tuple[int, ...]) -> Blocks:
        """Allocate blocks in every group; check `fits` first."""
        return tuple(pool.allocate(count) for count, pool in zip(counts, self.pools, strict=True))

    def release(self, tables: Iterable[Iterable[int]]) -> None:
        """Free blocks in every group."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.release(table)
