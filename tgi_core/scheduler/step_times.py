"""Measured step times and throughput of the shard, from which waiting times and the number of prompt tokens per step follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_WEIGHT = 0.05
"""Weight of the latest step in the moving average of tokens per second."""
_SHORTEST_S, _LONGEST_S = 1.0, 60.0
_GUESSED_RATE = 1000.0
"""Tokens per second assumed before the first measurement."""
_STEP_WEIGHT = 0.2
"""Weight of the latest step in the moving averages of step times."""
_CHEAPER_WEIGHT = 0.02
"""Weight of a step whose prompt tokens cost less than the average: a few may be free next to reading the weights, many are not."""
_STRETCH = 1.6
"""Factor by which prompt tokens may lengthen a step without a noticeable pause for readers."""
_FAR_OFF = 4.0
"""Measurements are capped at this multiple of the average, since they may be outliers, for example after a suspended process."""
_FAR_OFF_ALONE = 1.3
"""Cap for steps that only decode. Disturbances only ever lengthen those, which would give prompts too much of a step."""
_HOPE = 0.99
"""Factor on the cost of a draft with each step without one, so that a cost which a disturbance raised is measured again."""
_UNSEEN_S = 0.01
"""Duration of a step, in seconds, up to which it is never noticeable as a pause."""


class Throughput:
    """A moving average of tokens per second over consecutive steps."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last: float | None = None

    def step(self, tokens: int, now: float) -> None:
        """Record a launched step of `tokens` tokens."""
        if self._last is not None and now > self._last:
            rate = tokens / (now - self._last)
            self._rate = rate if not self._rate else self._rate + _WEIGHT * (rate - self._rate)
        self._last = now

    def pause(self) -> None:
        """Record that nothing runs: the time until the next step does not count."""
        self._last = None

    def tokens_in(self, seconds: float) -> float:
        """Return the number of tokens computed in `seconds`."""
        return seconds * (self._rate or _GUESSED_RATE)

    @property
    def rate(self) -> float:
        """Tokens per second; 0 before the first measurement."""
        return self._rate


def seconds_for(tokens: int, rate: float) -> float:
    """Return the time for `tokens` tokens at `rate` tokens per second, from 1 to 60 seconds; 1 if the rate is not known."""
    return min(_LONGEST_S, max(_SHORTEST_S, tokens / rate if rate else 0.0))


class StepTimes:
    """What a step costs: a time that depends on the number of decoding rows, one for each of their drafts, and one for each prompt token.
    All are moving averages over the steps that were read."""

    def __init__(self) -> None:
        self._unread: deque[tuple[float, int, int, int]] = deque()
        self._last_read = float("-inf")
        self._alone_s: dict[int, float] = {}
        """By the bit length of the number of rows: steps with similar numbers of rows take similar times."""
        self._draft_s: dict[int, float] = {}
        """What a draft adds, by the bit length of the number of rows."""
        self._token_s = 0.0

    def launched(self, rows: int, prompt_tokens: int, now: float, drafts: int = 0) -> None:
        """Record a launched step with `rows` decoding rows, their `drafts` and `prompt_tokens` prompt tokens."""
        self._unread.append((now, rows, prompt_tokens, drafts))

    def undo(self) -> None:
        """Discard the step launched last, which was refused."""
        self._unread.pop()

    def read(self, now: float) -> None:
        """Record that the oldest step was read. It began when it was launched, or when the one before it was done."""
        launched, rows, prompt_tokens, drafts = self._unread.popleft()
        seconds, self._last_read = now - max(launched, self._last_read), now
        if prompt_tokens:
            each = max(0.0, seconds - self._alone(rows) - drafts * self._draft_s.get(rows.bit_length(), 0.0)) / prompt_tokens
            self._token_s = _averaged(self._token_s, each, _STEP_WEIGHT if each > self._token_s else _CHEAPER_WEIGHT)
        elif drafts:
            if alone := self.decoding_s(rows):
                each = max(0.0, seconds - alone) / drafts
                self._draft_s[rows.bit_length()] = _averaged(self._draft_s.get(rows.bit_length(), 0.0), each, _STEP_WEIGHT)
        else:
            size = rows.bit_length()
            self._alone_s[size] = _averaged(self._alone_s.get(size, 0.0), seconds, _STEP_WEIGHT, _FAR_OFF_ALONE)
            if size in self._draft_s:
                self._draft_s[size] *= _HOPE

    def forget(self) -> None:
        """Discard the launched steps, which will not be read."""
        self._unread.clear()

    def prompt_tokens(self, rows: int) -> int | None:
        """Return the number of prompt tokens that can run next to `rows` decoding rows without a noticeable pause; None before the
        first measurement."""
        alone = self._alone(rows)
        if not alone or not self._token_s:
            return None
        return int(max((_STRETCH - 1) * alone, _UNSEEN_S - alone) / self._token_s)

    def decoding_s(self, rows: int) -> float:
        """Return the seconds of a step that decodes a token of each row; 0 if there was none of about that size."""
        return self._alone_s.get(rows.bit_length(), 0.0)

    @property
    def by_size(self) -> Mapping[int, float]:
        """Seconds of steps that only decode, by the bit length of their number of rows."""
        return self._alone_s

    def draft_s(self, rows: int) -> float:
        """Return the seconds that a draft adds to such a step; 0 if none was measured."""
        return self._draft_s.get(rows.bit_length(), 0.0)

    def _alone(self, rows: int) -> float:
        """Return the seconds of a step that only decodes `rows` rows, from the nearest measured number of rows; 0 if there is
        none."""
        if not rows or not self._alone_s:
            return 0.0
        return self._alone_s[min(self._alone_s, key=lambda bits: abs(bits - rows.bit_length()))]


def _averaged(average: float, value: float, weight: float, far_off: float = _FAR_OFF) -> float:
    """Return the updated moving average."""
    return average + weight * (min(value, far_off * average) - average) if average else value
