"""Which replicas have which prefixes cached."""

from __future__ import annotations

import secrets

from tgi_core.scheduler.prefix import Entry, PrefixIndex

_SECRET = 16


class Holders:
    """Replicas by the key of a block, as the bits of an integer. It is exact: the schedulers of all replicas report what enters and
    leaves their prefix indexes."""

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(_SECRET)
        """Key of the hash of all replicas, so that a prompt is hashed once."""
        self._bits: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._bits)

    def of(self, key: bytes) -> int:
        """Return the replicas that hold a block, as a bit set: bit n is replica n."""
        return self._bits.get(key, 0)

    def add(self, key: bytes, bit: int) -> None:
        """Record that a replica holds a block."""
        others = self._bits.get(key)
        self._bits[key] = (
            bit if others is None else others | bit
        )  # most blocks have one holder: they share that replica's integer

    def remove(self, key: bytes, bit: int) -> None:
        """Record that a replica no longer holds a block."""
        left = self._bits.get(key, 0) & ~bit
        if left:
            self._bits[key] = left
        else:
            self._bits.pop(key, None)

    def longest(self, keys: list[bytes], among: int) -> tuple[int, int]:
        """Return the number of first blocks of `keys` that some of the replicas `among` hold, and which of them do, as a bit set.

        Evicting drops the end of a prefix before its start, so who holds a block holds those before it, and a binary search suffices. It
        begins near the end: most prompts are an earlier conversation and a little more. (If all layers of a model have windows, a replica
        may lack the start, and the search may find too little.) Replicas report one cache group, the one that keeps whole prefixes; others
        may make a hit shorter.
        """
        low, high, gap, holding, bits = 0, len(keys), 1, 0, self._bits
        while low < high:
            middle = max(low + 1, high - gap) if gap else (low + high + 1) // 2
            found = bits.get(keys[middle - 1], 0) & among
            if found:
                low, gap, holding = middle, 0, found
            else:
                high, gap = middle - 1, gap * 4
        return low, holding


class SharedPrefixIndex(PrefixIndex):
    """The prefix index of one replica, which reports its keys to `holders`."""

    def __init__(self, block_size: int, holders: Holders, replica: int) -> None:
        super().__init__(block_size, holders.secret)
        self._holders, self._bit = holders, 1 << replica

    def add(self, key: bytes, block: int) -> Entry | None:
        """Add an entry with a row's block; see `PrefixIndex.add`."""
        entry = super().add(key, block)
        if entry is not None:
            self._holders.add(key, self._bit)
        return entry

    def evict(self) -> int:
        """Evict the least recently used idle entry; see `PrefixIndex.evict`."""
        if self.unheld:
            self._holders.remove(next(iter(self.unheld)), self._bit)
        return super().evict()
