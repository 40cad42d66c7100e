"""The suite's own grammar masks, by name, so that a recorded failure can be run again. A mask depends only on how many tokens its row has
made and, in OWN and SLOW, on the request's id. So a row alone, under an id of the same phase, and the same row in a batch get the same
masks.
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
"""Seconds that a SLOW source takes for a row."""

DOOMED = 1_000_000
"""FAILING forbids everything to requests from this id on; BREAKING and LOSING raise for them."""

AFTER = 2
"""Number of tokens that a doomed request makes first."""


@dataclass(slots=True)
class Masks:
    """A row's token n must be even for even n and odd for odd n. `told` are the tokens that the backend reported, by request; `trouble`
    is what was wrong with its calls, or "". `fill` waits while the source is `held`."""

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
        """Switch to another kind, for a scenario that has not begun."""
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
        """Record that a step is launched that runs a row, and whether the row makes a token in it."""
        if yields:
            self._incomplete.discard(id)
        else:
            self._incomplete.add(id)

    @contextlib.contextmanager
    def held(self, time_limit_s: float) -> Iterator[Callable[[], bool]]:
        """Inside, `fill` does not return until the time limit. The yielded function tells whether the source is still held."""
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
        """What is wrong with the tokens that the backend reported for a request that made `tokens`, the last of which it need not report;
        or ""."""
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
    """The part of a request's id that its masks depend on."""
    return id % PHASES if kind in (OWN, SLOW) else None
