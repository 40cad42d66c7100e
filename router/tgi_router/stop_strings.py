"""Removal of the stop string from a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Holds back the end of a text while it may be the beginning of a stop string.

    The shard ends a text at its stop string, so a stop string can occur only at the very end.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """Add `text` and return the text that may be sent."""
        if not self._stops:
            return text
        text = self._held + text
        self._held = beginning_at_end(text, self._stops)
        return text.removesuffix(self._held)

    def finish(self) -> str:
        """Return the remaining text to send at the end."""
        held, self._held = self._held, ""
        return cut(held, self._stops)


def matched(text: str, stops: Sequence[str]) -> str:
    """Return the stop string that a complete text ends with: the longest one, if several match; "" if none does."""
    return max((stop for stop in stops if text.endswith(stop)), key=len, default="")


def cut(text: str, stops: Sequence[str]) -> str:
    """Strip the stop string from a complete text."""
    return text.removesuffix(matched(text, stops))


def beginning_at_end(text: str, wanted: Sequence[str]) -> str:
    """Return the longest suffix of `text` that is a prefix of one of `wanted`, or all of one; "" if there is none."""
    longest = min(max(map(len, wanted), default=0), len(text))
    endings = (text[-size:] for size in range(longest, 0, -1))
    return next((ending for ending in endings if any(each.startswith(ending) for each in wanted)), "")
