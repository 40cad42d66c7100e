"""Measured step times and throughput of the shard, from which waiting times and prefill budgets are derived."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

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
_HOPE = 0.993
"""Factor on the cost of a draft for each step without drafts, so that a cost inflated by a disturbance is measured again."""
_UNSEEN_S = 0.01
"""A step of at most this many seconds is never noticeable as a pause."""


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


@dataclass(slots=True)
class _Added:
    """Time that drafts, or proposing rows, added to steps of about as many rows, as decaying sums. Steps with more of them weigh
    more, and disturbances average out."""

    seconds: float = 0.0
    count: float = 0.0

    @property
    def each(self) -> float:
        """Seconds per draft or proposing row."""
        return max(0.0, self.seconds) / self.count if self.count else 0.0

    def note(self, seconds: float, count: int, alone: float) -> None:
        """Add a step that took `seconds` longer than the `alone` seconds of one that only decodes. It is capped like those;
        otherwise disturbances, which are rare in short steps and frequent in long ones, would all be attributed to drafts."""
        most = _FAR_OFF_ALONE * (alone + self.each * count) - alone if self.count else _FAR_OFF * alone
        self.seconds = (1 - _STEP_WEIGHT) * self.seconds + min(seconds, most)
        self.count = (1 - _STEP_WEIGHT) * self.count + count


class StepTimes:
    """The cost of a step: a time that depends on the number of decoding rows, plus a time per draft, proposing row and prompt
    token. All are moving averages over the steps that were read."""

    def __init__(self) -> None:
        self._unread: deque[tuple[float, int, int, int, int]] = deque()
        self._last_read = float("-inf")
        self._alone_s: dict[int, float] = {}
        """By the bit length of the number of rows: steps with similar numbers of rows take similar times."""
        self._added: dict[int, _Added] = {}
        """Cost of drafts, by the bit length of the number of rows."""
        self._proposals: dict[int, _Added] = {}
        """Cost of proposing rows, by the same."""
        self._token_s = 0.0

    def launched(self, rows: int, prompt_tokens: int, now: float, drafts: int = 0, proposing: int = 0) -> None:
        """Record a launched step with `rows` decoding rows, of which `proposing` propose drafts, and with `drafts` drafts and
        `prompt_tokens` prompt tokens."""
        self._unread.append((now, rows, prompt_tokens, drafts, proposing))

    def undo(self) -> None:
        """Discard the step launched last, which was refused."""
        self._unread.pop()

    def read(self, now: float) -> None:
        """Record that the oldest step was read. It began when it was launched, or when the previous one ended."""
        launched, rows, prompt_tokens, drafts, proposing = self._unread.popleft()
        seconds, self._last_read = now - max(launched, self._last_read), now
        if prompt_tokens:
            known = self._alone(rows) + drafts * self.draft_s(rows) + proposing * self.proposal_s(rows)
            each = max(0.0, seconds - known) / prompt_tokens
            self._token_s = _averaged(self._token_s, each, _STEP_WEIGHT if each > self._token_s else _CHEAPER_WEIGHT)
        elif drafts or proposing:
            self._note_added(rows, drafts, proposing, seconds)
        else:
            size = rows.bit_length()
            self._alone_s[size] = _averaged(self._alone_s.get(size, 0.0), seconds, _STEP_WEIGHT, _FAR_OFF_ALONE)
            for added in (self._added.get(size), self._proposals.get(size)):
                if added is not None:
                    added.seconds *= _HOPE

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
        """Return the seconds of a step that only decodes; 0 if none of about that size was measured."""
        return self._alone_s.get(rows.bit_length(), 0.0)

    @property
    def by_size(self) -> Mapping[int, float]:
        """Seconds of steps that only decode, by the bit length of their number of rows."""
        return self._alone_s

    def draft_s(self, rows: int) -> float:
        """Return the seconds that a draft adds to such a step; 0 if none was measured."""
        added = self._added.get(rows.bit_length())
        return 0.0 if added is None else added.each

    def proposal_s(self, rows: int) -> float:
        """Return the seconds that a proposing row adds; 0 if none was measured."""
        added = self._proposals.get(rows.bit_length())
        return 0.0 if added is None else added.each

    def draft_share(self, rows: int) -> float | None:
        """Return what a draft adds to a step of `rows` rows, as a share of its time; None if that was not measured for about as many."""
        return self._share(self._added, rows)

    def proposal_share(self, rows: int) -> float | None:
        """Return the same for a proposing row."""
        return self._share(self._proposals, rows)

    def measured(self, rows: int) -> bool:
        """Return whether a step that only decodes about as many rows was measured."""
        return rows.bit_length() in self._alone_s

    def _note_added(self, rows: int, drafts: int, proposing: int, seconds: float) -> None:
        """Attribute the extra time of a step over one that only decodes, if that is known, to its drafts if it has any, else to
        its proposals."""
        if alone := self.decoding_s(rows):
            more, size = seconds - alone, rows.bit_length()
            if drafts:
                self._added.setdefault(size, _Added()).note(more - proposing * self.proposal_s(rows), drafts, alone)
            else:
                self._proposals.setdefault(size, _Added()).note(more, proposing, alone)

    def _share(self, added: Mapping[int, _Added], rows: int) -> float | None:
        found, alone = added.get(rows.bit_length()), self.decoding_s(rows)
        if found is None:
            return None
        return found.each / alone if alone else 0.0

    def _alone(self, rows: int) -> float:
        """Return the seconds of a step that only decodes `rows` rows, from the nearest measured number of rows; 0 if there is
        none."""
        if not rows or not self._alone_s:
            return 0.0
        return self._alone_s[min(self._alone_s, key=lambda bits: abs(bits - rows.bit_length()))]


def _averaged(average: float, value: float, weight: float, far_off: float = _FAR_OFF) -> float:
    """Return the updated moving average."""
    return average + weight * (min(value, far_off * average) - average) if average else value
