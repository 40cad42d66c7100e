"""Leaving the stop string out of an answer that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Holds back the end of a text for as long as it may be the beginning of a stop string.

    The shard ends an answer with its stop string, so that one can stand at the very end only.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """The text that may be sent once `text` has arrived."""
        if not self._stops:
            return text
        text = self._held + text
        self._held = beginning_at_end(text, self._stops)
        return text.removesuffix(self._held)

    def finish(self) -> str:
        """The text that is left to send once the answer has ended."""
        held, self._held = self._held, ""
        return cut(held, self._stops)


def cut(text: str, stops: Sequence[str]) -> str:
    """A complete answer without the stop string that ends it: the longest, where one ends another."""
    found = max((len(stop) for stop in stops if stop and text.endswith(stop)), default=0)
    return text[: len(text) - found]


def beginning_at_end(text: str, wanted: Sequence[str]) -> str:
    """The longest end of `text` that is a beginning of one of `wanted`, or all of one; "" where there is none."""
    longest = min(max(map(len, wanted), default=0), len(text))
    endings = (text[-size:] for size in range(longest, 0, -1))
    return next((ending for ending in endings if any(each.startswith(ending) for each in wanted)), "")
