"""Speculation: which rows get drafts for the next step, and how many.

A draft is worth its cost while it is likely to be accepted and the step does not take much longer for it. Both are measured: the share
of each row's drafts that were accepted lately, and the time of steps by their number of tokens.
"""

from __future__ import annotations

from tgi_core.scheduler.ngram import NgramIndex
from tgi_core.scheduler.pace import StepTimes
from tgi_core.scheduler.sequence import Sequence

_WEIGHT = 0.25
"""Weight of a step's drafts in the moving average of a row's acceptance."""
_RECOVERY = 0.01
"""What a row's acceptance gains with each step without drafts, so that a row whose drafts failed gets some again."""
_LEAST_CHANCE = 0.2
"""Chance of acceptance below which a draft is not run, even if it seems to cost nothing."""
_HOPEFUL = 0.5
"""Acceptance from which a row waits for its unread tokens rather than decode the next one without drafts."""


class Drafter:
    """Proposes drafts of at most `most` tokens."""

    def __init__(self, most: int, times: StepTimes) -> None:
        self.most = most
        self._times = times

    def drafts(self, sequence: Sequence, rows: int) -> tuple[int, ...]:
        """Return drafts for a row whose tokens have all been read, in a step of `rows` rows."""
        left = sequence.end - len(sequence.tokens) - 1
        length = min(self.most, left, self._length(rows, sequence.acceptance))
        found = self._found(sequence, length)
        if not found and sequence.acceptance < _HOPEFUL:
            sequence.acceptance += _RECOVERY
        return found

    def worth_waiting(self, sequence: Sequence) -> bool:
        """Return whether a row with unread tokens should rather sit out and get drafts after they are read."""
        return sequence.acceptance >= _HOPEFUL and bool(self._found(sequence, 1))

    def read(self, sequence: Sequence, tokens: int) -> None:
        """Record that the step with a row's drafts was read, and made `tokens` tokens."""
        accepted = tokens - 1
        share = accepted / (accepted + (accepted < sequence.drafts))
        sequence.acceptance += _WEIGHT * (share - sequence.acceptance)

    def _length(self, rows: int, acceptance: float) -> int:
        """Return the number of drafts per row with which the step yields most tokens per second."""
        alone = self._times.decoding_s(rows)
        best, most = 0, 1.0
        tokens = chance = 1.0
        for length in range(1, self.most + 1):
            chance *= acceptance
            if chance < _LEAST_CHANCE:
                break
            tokens += chance
            longer = self._times.decoding_s(rows * (1 + length))
            rate = tokens * alone / longer if alone and longer else tokens
            if rate > most:
                best, most = length, rate
        return best

    @staticmethod
    def _found(sequence: Sequence, length: int) -> tuple[int, ...]:
        if sequence.ngrams is None:
            sequence.ngrams = NgramIndex()
        return sequence.ngrams.propose(sequence.tokens, length)
