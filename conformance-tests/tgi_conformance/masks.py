"""Grammar masks that the suite brings along, by name, so that a recorded failure can be run again.

A mask depends only on how many tokens its row has made, so a row alone and the same row among mates get the same masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.backend import DeviceLost, MaskRow, OutOfMemory

ALTERNATING, FAILING, BREAKING, LOSING = "alternating", "failing", "breaking", "losing"
SOURCES = (ALTERNATING, FAILING, BREAKING, LOSING)

DOOMED = 1_000_000
"""FAILING forbids everything to requests from this id on; BREAKING and LOSING raise for them."""

AFTER = 2
"""How many tokens a doomed request makes first."""


@dataclass(slots=True)
class Masks:
    """A row's token n must be even for even n and odd for odd n. `told` are the tokens that the backend reported, by request."""

    vocab_size: int
    kind: str = ALTERNATING
    told: dict[int, list[int]] = field(default_factory=dict)
    stopped: bool = False

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Packed bits, as `MaskSource` says."""
        return b"".join(self._bits(row) for row in rows)

    def _bits(self, row: MaskRow) -> bytes:
        made = self.told.setdefault(row.request_id, [])
        made += row.tokens
        words = -(-self.vocab_size // 32)
        if row.request_id >= DOOMED and len(made) >= AFTER and not self.stopped:
            if self.kind == BREAKING:
                raise OutOfMemory("the suite makes this step fail")
            if self.kind == LOSING:
                raise DeviceLost("the suite makes this step lose its device")
            if self.kind == FAILING:
                return bytes(4 * words)
        word = 0xAAAAAAAA if len(made) % 2 else 0x55555555
        bits = bytearray(word.to_bytes(4, "little") * words)
        if self.vocab_size % 32:
            last = int.from_bytes(bits[-4:], "little") & ((1 << self.vocab_size % 32) - 1)
            bits[-4:] = last.to_bytes(4, "little")
        return bytes(bits)


def allows(made: int, token: int) -> bool:
    """Whether a row that has made `made` tokens may make this one."""
    return token % 2 == made % 2
