"""Stop conditions of a generation: end-of-sequence tokens, stop strings, length."""

from __future__ import annotations

from tgi_core.wire.types import FinishReason, Stopping


class StopMatcher:
    """Finds the first of several stop strings in a text that arrives in pieces; a match may span pieces."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._tail = ""

    def push(self, piece: str) -> int | None:
        """Return the number of characters of `piece` up to the end of a stop string; None if no stop string ends in it."""
        if not self._longest or not piece:
            return None
        window = self._tail + piece
        before = len(self._tail)
        ends = [found + len(text) for text in self._stop if (found := window.find(text, max(0, before - len(text) + 1))) >= 0]
        self._tail = window[-(self._longest - 1) :] if self._longest > 1 else ""
        return min(ends) - before if ends else None


class StoppingCriteria:
    """Stop conditions in TGI's order: length, end of sequence, stop strings. So the last allowed token reports length, unless it is a
    stop token, which TGI does not have."""

    def __init__(self, stopping: Stopping, eos_ids: frozenset[int]) -> None:
        self._max_new_tokens = stopping.max_new_tokens
        self._eos_ids = frozenset() if stopping.ignore_eos else eos_ids
        self._stop_ids = frozenset(stopping.stop_ids)
        self._min_new_tokens = stopping.min_new_tokens
        self._matcher = StopMatcher(stopping.stop)
        self.generated = 0
        """Number of generated tokens."""

    def push(self, token: int, text: str) -> tuple[FinishReason | None, int]:
        """Return the finish reason, if any, and the number of characters of `text` to keep. A stop string is kept."""
        self.generated += 1
        end = self._matcher.push(text)
        early = self.generated <= self._min_new_tokens
        if early:
            end = None
        elif token in self._stop_ids:
            return FinishReason.STOP_SEQUENCE, len(text)
        if self.generated >= self._max_new_tokens:
            return FinishReason.LENGTH, len(text) if end is None else end
        if token in self._eos_ids and not early:
            return FinishReason.EOS_TOKEN, len(text)
        if end is not None:
            return FinishReason.STOP_SEQUENCE, end
        return None, len(text)
