"""Grammar masks that the suite brings along, by name, so that a recorded failure can be run again.

A mask depends only on how many tokens its row has made, and in OWN and SLOW on the request's id, so that a row alone, under an id of the
same phase, and the same row among mates get the same masks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tgi_core.backend import DeviceLost, MaskRow, OutOfMemory

ALTERNATING, FAILING, BREAKING, LOSING = "alternating", "failing", "breaking", "losing"
OWN, SLOW = "own", "slow"
SOURCES = (ALTERNATING, FAILING, BREAKING, LOSING, OWN, SLOW)

PHASES = 3
"""Under OWN and SLOW a third of the tokens are allowed: which third depends on the request's id and on how many tokens were made."""

SLOW_S = 0.03
"""How long a SLOW source takes for a row."""

DOOMED = 1_000_000
"""FAILING forbids everything to requests from this id on; BREAKING and LOSING raise for them."""

AFTER = 2
"""How many tokens a doomed request makes first."""


@dataclass(slots=True)
class Masks:
    """A row's token n must be even for even n and odd for odd n. `told` are the tokens that the backend reported, by request; `trouble` is
    what it did wrong in asking, or "". `fill` waits while the source is `held`."""

    vocab_size: int
    kind: str = ALTERNATING
    told: dict[int, list[int]] = field(default_factory=dict)
    trouble: str = ""
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _incomplete: set[int] = field(default_factory=set)
    """Requests whose prompt no launched step completes."""
    _open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._open.set()

    def act_as(self, kind: str) -> None:
        """Be of another kind from now on, for a scenario that has not begun."""
        self.kind, self.trouble = kind, ""

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Packed bits, as `MaskSource` says."""
        alone = self._busy.acquire(blocking=False)
        if not alone:
            self.trouble = "its mask source was called while another thread was in it"
        self._open.wait()
        if early := next((row.request_id for row in rows if row.request_id in self._incomplete), None):
            self.trouble = f"its mask source was asked for row {early}, which makes no token yet: its prompt is incomplete"
        try:
            return b"".join(self._bits(row) for row in rows)
        finally:
            if alone:
                self._busy.release()

    def complete(self, id: int, yields: bool) -> None:
        """A step is launched that runs a row, and makes a token of it or does not."""
        if yields:
            self._incomplete.discard(id)
        else:
            self._incomplete.add(id)

    @contextlib.contextmanager
    def held(self, time_limit_s: float) -> Iterator[Callable[[], bool]]:
        """Until it is left, or the time is over, `fill` does not return. What it gives says whether the source is still held."""
        timer = threading.Timer(time_limit_s, self._open.set)
        self._open.clear()
        timer.start()
        try:
            yield lambda: not self._open.is_set()
        finally:
            timer.cancel()
            timer.join()
            self._open.set()

    def misled(self, id: int, tokens: list[int]) -> str:
        """What is wrong with the tokens that were told of a request that made `tokens`, the last of which need not be told; or ""."""
        told = self.told.get(id, [])
        short = len(told) < len(tokens) - 1
        wrong = short or told[: len(tokens)] != tokens[: len(told)]
        return f"row {id} made {tokens} and its mask source was told {told}" if wrong else ""

    def _bits(self, row: MaskRow) -> bytes:
        made = self.told.setdefault(row.request_id, [])
        made += row.tokens
        words = -(-self.vocab_size // 32)
        if row.request_id >= DOOMED and len(made) >= AFTER:
            if self.kind == BREAKING:
                raise OutOfMemory("the suite makes this step fail")
            if self.kind == LOSING:
                raise DeviceLost("the suite makes this step lose its device")
            if self.kind == FAILING:
                return bytes(4 * words)
        if self.kind == SLOW:
            time.sleep(SLOW_S)
        if (shift := phase(self.kind, row.request_id)) is None:
            word = 0xAAAAAAAA if len(made) % 2 else 0x55555555
            bits = bytearray(word.to_bytes(4, "little") * words)
        else:
            thirds = 0x249249 << -(len(made) + shift) % PHASES & 0xFFFFFF
            bits = bytearray((thirds.to_bytes(3, "little") * (4 * words // 3 + 1))[: 4 * words])
        if self.vocab_size % 32:
            last = int.from_bytes(bits[-4:], "little") & ((1 << self.vocab_size % 32) - 1)
            bits[-4:] = last.to_bytes(4, "little")
        return bytes(bits)


def allows(made: int, token: int, shift: int | None = None) -> bool:
    """Whether a row that has made `made` tokens may make this one; `shift` is its phase under OWN and SLOW."""
    return token % 2 == made % 2 if shift is None else (token + made + shift) % PHASES == 0


def phase(kind: str | None, id: int) -> int | None:
    """What of a request's id its masks depend on."""
    return id % PHASES if kind in (OWN, SLOW) else None
