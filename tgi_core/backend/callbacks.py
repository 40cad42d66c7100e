"""Callbacks that the core passes to a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MaskRow:
    """A row that needs a mask. `tokens` are the tokens sampled since its previous mask; empty for its first mask."""

    request_id: int
    tokens: tuple[int, ...] = ()


class MaskSource(Protocol):
    """Source of grammar masks. A backend calls it between the forward pass and sampling, from any thread but one at a time.

    A step may be masked before the previous step's rows are read, so the source receives new tokens through `fill`, not from
    `rows`. A backend requests masks only for masked rows about to sample a token, not for rows whose prompt is still incomplete.
    Request the masks of all rows of a step in one call if possible; a call per row is allowed. Tokens that came with the request
    are not passed.
    """

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Return packed masks: `ceil(vocabulary / 32)` little-endian uint32 per row; a 1 bit allows the token.

        If all bits of a row are 0, its request has failed; the backend ends only that row, with RowFaultKind.MASK. Rows dropped
        since their step was launched get a mask too.

        The core's source never raises. The conformance suite's raises a BackendError to make a step fail: let it propagate to `rows`.
        """


class Progress(Protocol):
    """Callback for progress of slow work: `done` of `total`, in `unit` ("B" for bytes, "step" for a count of steps)."""

    def __call__(self, what: str, done: int, total: int, unit: str) -> None: ...
