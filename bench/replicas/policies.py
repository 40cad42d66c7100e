"""Placements to compare: the one that serves, and simpler ones."""

from __future__ import annotations

import itertools

from tgi_core.replicas.holders import Holders
from tgi_core.replicas.placement import Choice, Placement


class RoundRobin(Placement):
    """Each replica in turn."""

    def __init__(self, block_size: int, holders: Holders | None = None) -> None:
        super().__init__(block_size, holders)
        self._turns = itertools.count()

    def choose(self, tokens: int, keys: list[bytes], answer: int, barred: int = 0) -> Choice | None:
        """Choose the next replica."""
        if not self.up:
            return None
        return Choice(next(self._turns) % self.up, 0)


class LeastBusy(Placement):
    """The replica with the least work, whatever it holds."""

    def choose(self, tokens: int, keys: list[bytes], answer: int, barred: int = 0) -> Choice | None:
        """Choose the least busy replica."""
        return super().choose(tokens, [], answer, barred)


POLICIES: dict[str, type[Placement]] = {"prefix and load": Placement, "least busy": LeastBusy, "round robin": RoundRobin}
