"""How many generations may be in the server at once."""

from __future__ import annotations

from tgi_router.errors import ModelOverloaded


class Permits:
    """A counter that is tried, never waited for. Used on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    def take(self, count: int) -> None:
        """Take all or none. Raises ModelOverloaded."""
        if self.taken + count > self._limit:
            raise ModelOverloaded
        self.taken += count

    def give_back(self, count: int) -> None:
        """Return what was taken."""
        self.taken -= count
