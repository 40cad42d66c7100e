"""Reasoning parser: what a model writes between tags such as `<think>` before its answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tgi_router.stop_strings import beginning_at_end

_LONGEST_GAP = 64
"""Maximum number of white-space characters that are held back, since they may be the last of the reasoning."""


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The texts around the reasoning of a model."""

    open: str
    close: str


KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<seed:think>", "</seed:think>"),
)
"""Tags of DeepSeek, Qwen, GLM and others; of Mistral; of Seed."""


def reasoning_tags(sources: Iterable[str]) -> ReasoningTags | None:
    """Return the tags that a model's chat templates mention; None if the model does not reason."""
    texts = list(sources)
    return next((tags for tags in KNOWN if any(tags.close in text for text in texts)), None)


class ReasoningReader:
    """Splits one response into its reasoning and its answer, without the tags and the white space around them. `opened`: the prompt
    ends with the opening tag."""

    def __init__(self, tags: ReasoningTags, opened: bool) -> None:
        self.inside = opened
        """Whether the last text pushed was reasoning, or the tag before it."""
        self._tags = tags
        self._started = opened
        self._answering = False
        self._pending = ""
        self._said = False

    def push(self, text: str, last: bool) -> tuple[str, str]:
        """Add `text`, the last if `last`. Return the reasoning and the answer that are certain by then."""
        self._pending += text
        if not self._started:
            self._start(last)
        thought = self._reasoning(last) if self.inside else ""
        return thought, self._answer() if self._started and not self.inside else ""

    def _start(self, last: bool) -> None:
        rest = self._pending.lstrip()
        if rest.startswith(self._tags.open):
            self._pending = rest.removeprefix(self._tags.open)
            self._started = self.inside = True
        elif last or len(self._pending) > _LONGEST_GAP or not self._tags.open.startswith(rest):
            self._started = self._answering = True

    def _reasoning(self, last: bool) -> str:
        if not self._said:
            self._pending = self._pending.lstrip()
        thought, closed, answer = self._pending.partition(self._tags.close)
        if closed:
            self.inside, self._pending = False, answer
            return self._saying(thought.rstrip())
        if last:
            self._pending = ""
            return self._saying(thought.rstrip())
        certain = thought.removesuffix(beginning_at_end(thought, (self._tags.close,)))
        if len(certain) - len(certain.rstrip()) <= _LONGEST_GAP:
            certain = certain.rstrip()
        self._pending = thought[len(certain) :]
        return self._saying(certain)

    def _saying(self, text: str) -> str:
        self._said = self._said or bool(text)
        return text

    def _answer(self) -> str:
        if not self._answering:
            self._pending = self._pending.lstrip()
            self._answering = bool(self._pending)
        text, self._pending = self._pending, ""
        return text
