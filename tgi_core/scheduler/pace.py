"""How fast the shard computes, and so how long what waits will take, and what a step may hold."""

from __future__ import annotations

from collections import deque

_WEIGHT = 0.05
"""Of the latest step in the average."""
_SHORTEST_S, _LONGEST_S = 1.0, 60.0
_GUESSED_RATE = 1000.0
"""Tokens per second while nothing is known."""
_STEP_WEIGHT = 0.2
"""Of the latest step in what steps cost."""
_CHEAPER_WEIGHT = 0.02
"""The same, where a prompt's tokens cost less than known: few of them may be hidden behind reading the weights, more are not."""
_STRETCH = 1.6
"""A step that runs prompts along may take so many times one that does not: who reads along then sees no pause."""
_FAR_OFF = 4.0
"""A value counts as at most so many times the usual: one may be far off, since the process was stopped, say."""
_FAR_OFF_ALONE = 1.3
"""The same for steps that decode alone. What disturbs them makes them longer and never shorter, and would give prompts more room than
the usual step leaves."""
_UNSEEN_S = 0.01
"""A step as short as that is no pause, whatever the others take."""


class Pace:
    """A moving average of tokens per second over steps that follow each other."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last: float | None = None

    def step(self, tokens: int, now: float) -> None:
        """A step of so many tokens was launched."""
        if self._last is not None and now > self._last:
            rate = tokens / (now - self._last)
            self._rate = rate if not self._rate else self._rate + _WEIGHT * (rate - self._rate)
        self._last = now

    def pause(self) -> None:
        """Nothing runs; the time until the next step is not the shard's."""
        self._last = None

    def tokens_in(self, seconds: float) -> float:
        """How many tokens so many seconds make."""
        return seconds * (self._rate or _GUESSED_RATE)

    def seconds_for(self, tokens: int) -> float:
        """How long so many tokens take, from 1 to 60; 1 while nothing is known."""
        return min(_LONGEST_S, max(_SHORTEST_S, tokens / self._rate if self._rate else 0.0))


class StepTimes:
    """What a step costs: so much with rows that decode alone, by how many they are, and so much more for each token of a prompt in it.
    Learned from the steps that come back, as moving averages."""

    def __init__(self) -> None:
        self._unread: deque[tuple[float, int, int]] = deque()
        self._last_read = float("-inf")
        self._alone_s: dict[int, float] = {}
        """By the number of bits of the number of rows: steps of rows so close to each other take about as long."""
        self._token_s = 0.0

    def launched(self, rows: int, prompt_tokens: int, now: float) -> None:
        """A step with so many rows that decode, and tokens of prompts."""
        self._unread.append((now, rows, prompt_tokens))

    def undo(self) -> None:
        """The step launched last was refused."""
        self._unread.pop()

    def read(self, now: float) -> None:
        """The oldest step has come back. It began when it was launched, or when the one before it was done."""
        launched, rows, prompt_tokens = self._unread.popleft()
        seconds, self._last_read = now - max(launched, self._last_read), now
        if prompt_tokens:
            each = max(0.0, seconds - self._alone(rows)) / prompt_tokens
            self._token_s = _averaged(self._token_s, each, _STEP_WEIGHT if each > self._token_s else _CHEAPER_WEIGHT)
        else:
            known = self._alone_s.get(rows.bit_length(), 0.0)
            self._alone_s[rows.bit_length()] = _averaged(known, seconds, _STEP_WEIGHT, _FAR_OFF_ALONE)

    def forget(self) -> None:
        """What is launched is never read."""
        self._unread.clear()

    def prompt_tokens(self, rows: int) -> int | None:
        """How many tokens of prompts so many rows that decode need not mind in their step; None while nothing is known."""
        alone = self._alone(rows)
        if not alone or not self._token_s:
            return None
        return int(max((_STRETCH - 1) * alone, _UNSEEN_S - alone) / self._token_s)

    def _alone(self, rows: int) -> float:
        """What rows that decode take by themselves: what about as many took, of those that are known; 0 for none."""
        if not rows or not self._alone_s:
            return 0.0
        return self._alone_s[min(self._alone_s, key=lambda bits: abs(bits - rows.bit_length()))]


def _averaged(average: float, value: float, weight: float, far_off: float = _FAR_OFF) -> float:
    """A moving average."""
    return average + weight * (min(value, far_off * average) - average) if average else value
