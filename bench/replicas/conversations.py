"""Conversations: system prompts that many share, and turns that repeat all that was said before."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

_SYSTEM_TOKENS = 512
_LONGEST = 12_000
"""Tokens at which a conversation ends."""
_OLDEST_S = 400.0
"""Age of the oldest conversations that are under way at the beginning."""
EACH_S = 0.02
"""Usual time per token of an answer."""


@dataclass(slots=True)
class Turn:
    """One request: `prompt` tokens, of which all full blocks have `keys`; `answer` tokens; `after`: keys of the full blocks that the answer
    completes."""

    prompt: int
    answer: int
    keys: list[bytes]
    after: list[bytes]
    at: float = 0.0
    """Arrival, in seconds."""


@dataclass(slots=True)
class Conversation:
    """A conversation whose turns are made one after another: the next one arrives some time after the answer."""

    number: int
    system: int
    block_size: int
    chance: random.Random
    turns: int
    tokens: int = _SYSTEM_TOKENS
    keys: list[bytes] = field(default_factory=list)
    paced: bool = False
    """Whether turns arrive at times of their own, however long answers take; else each some time after the answer."""

    def next(self) -> Turn | None:
        """Return the next turn; None at the end."""
        lengths = self._lengths()
        if lengths is None:
            return None
        prompt, answer = lengths
        full = (prompt - 1) // self.block_size
        return Turn(prompt, answer, self._extended(full)[:full], self._extended((self.tokens - 1) // self.block_size)[full:])

    def pause(self) -> float:
        """Return the seconds from an answer until the next turn arrives."""
        return self.chance.expovariate(1 / 15.0)

    def skip_to(self, now: float, at: float) -> float:
        """Leave out the turns that arrive before `now`, of which the first arrives at `at`. Return when the next one does."""
        while at < now and (lengths := self._lengths()) is not None:
            at += lengths[1] * EACH_S + self.pause()
        return at

    def _lengths(self) -> tuple[int, int] | None:
        """Return the tokens of the next turn's prompt and answer; None at the end."""
        if not self.turns or self.tokens > _LONGEST:
            return None
        self.turns -= 1
        prompt = self.tokens + min(2000, 1 + round(self.chance.lognormvariate(4.5, 1.0)))
        answer = min(1000, 1 + round(self.chance.lognormvariate(5.0, 0.7)))
        self.tokens = prompt + answer
        return prompt, answer

    def _extended(self, blocks: int) -> list[bytes]:
        shared = _SYSTEM_TOKENS // self.block_size
        for place in range(len(self.keys), blocks):
            self.keys.append(b"s%d:%d" % (self.system, place) if place < shared else b"c%d:%d" % (self.number, place))
        return self.keys


def conversations(
    seed: int, per_second: float, seconds: float, block_size: int, systems: int, under_way: bool = False
) -> Iterator[tuple[float, Conversation]]:
    """Yield conversations with the time at which each begins; some of the `systems` system prompts are far more common than others.
    `under_way`: they have been beginning for long, and each is yielded with its first turn from 0 s on; turns then have times of their
    own."""
    chance, now = random.Random(seed), -_OLDEST_S if under_way else 0.0
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(systems)))
    for number in range(1 << 60):
        now += chance.expovariate(per_second)
        if now > seconds:
            return
        [system] = chance.choices(range(systems), cum_weights=weights)
        turns = min(30, 1 + int(chance.expovariate(1 / 5.0)))
        one = Conversation(number, system, block_size, random.Random(seed << 32 | number), turns, paced=under_way)
        at = one.skip_to(0.0, now)
        if at >= 0.0:
            yield at, one
