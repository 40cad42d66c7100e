"""What a backend calls: the core's side of the hardware seam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MaskRow:
    """A row that needs a mask. `tokens` are those it has made since its last mask: none at its first, then what it made with that."""

    request_id: int
    tokens: tuple[int, ...] = ()


class MaskSource(Protocol):
    """Where a backend asks for grammar masks between forward pass and sampling, on any one thread at a time.

    A step may be masked before the rows of the step before it are read: the source learns of new tokens here, not from `rows`. Only
    rows that are about to make a token are asked for, those of one step together; tokens that the request brought along are not told.
    """

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Packed bits, per row `ceil(vocabulary / 32)` little-endian uint32; bit 1 allows the token. Never raises.

        All bits of a row 0: its request has failed; the backend ends that row alone with RowFaultKind.MASK. A row that was dropped
        since its step was launched gets a mask too.
        """


class Progress(Protocol):
    """Called as slow work goes on: `done` of `total` in `unit` ("B" for bytes, "step" for counted steps)."""

    def __call__(self, what: str, done: int, total: int, unit: str) -> None: ...
