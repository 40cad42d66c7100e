"""Splits the text of a response, as it is generated, into reasoning, text and tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_router.reasoning import ReasoningReader
from tgi_router.stop_strings import StopFilter
from tgi_router.tool_calls import Piece, ToolCallReader

Names = frozenset[str]


class MessageReader:
    """Reads one response. `stops` are the stop strings to strip, `names` the functions that may be called; without `reasoning`, all of
    it is the answer."""

    def __init__(self, stops: Sequence[str], names: Names, reasoning: ReasoningReader | None = None) -> None:
        self._filter = StopFilter(stops)
        self._calls = ToolCallReader(names) if names else None
        self._reasoning = reasoning

    @property
    def called(self) -> bool:
        """Whether the response has tool calls so far."""
        return self._calls is not None and self._calls.calls > 0

    @property
    def reasoning(self) -> bool:
        """Whether the last text pushed was reasoning."""
        return self._reasoning is not None and self._reasoning.inside

    def push(self, text: str, last: bool) -> list[Piece]:
        """Return the pieces that a token adds; without tools and reasoning, exactly one, which may be empty."""
        text = self._filter.push(text)
        if last:
            text += self._filter.finish()
        if self._reasoning is None:
            return self._answer(text, last)
        thought, text = self._reasoning.push(text, last)
        return [*([Piece(thought, reasoning=True)] if thought else []), *self._answer(text, last)]

    def _answer(self, text: str, last: bool) -> list[Piece]:
        if self._calls is None:
            return [Piece(text)]
        return [*self._calls.push(text), *(self._calls.finish() if last else ())]
