"""Tool call parser: finds tool calls in text while it is generated.

Recognizes `{"name": f, "arguments": {…}}` (or "parameters") at the start of a text, several of these in sequence or in a list, and
the same after `<tool_call>` anywhere: the formats of Llama, Qwen, Hermes, Mistral and similar models, and of this project's
grammar. Only functions that the client named count; everything else is text. Nothing is evaluated, and parsing takes linear time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tgi_router.stop_strings import beginning_at_end

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BEFORE = " \t\r\n["
_BETWEEN = " \t\r\n,;[]"
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{')
_LONGEST_HEAD = 512
"""Number of characters within which a call must name its function to be streamed; otherwise it is parsed once complete."""

_BITE = 256
"""Number of characters parsed at a time: pending text is copied for each tag in it."""

_LONGEST_LEAD = 64
"""Maximum number of spaces and brackets before a call; more of them are text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message: text if `call` is None, else arguments of that call. A `name` begins the call."""

    text: str
    call: int | None = None
    name: str | None = None
    reasoning: bool = False
    """Whether the text is not a part of the answer, but the reasoning before it."""


class _Object:
    """A JSON object that may be a call, parsed character by character."""

    def __init__(self, lead: str, names: frozenset[str]) -> None:
        self.lead = lead
        """Text before the object, which is part of the message if the object is not a call."""
        self.name: str | None = None
        self.complete = False
        self._names = names
        self._read: list[str] = []
        self._arguments: list[str] = []
        self._inside = False
        """Whether the next character is part of the arguments."""
        self._depth = 0
        self._quoted = self._escaped = False

    @property
    def text(self) -> str:
        """All text parsed so far."""
        return "".join(self._read)

    def take_arguments(self) -> str:
        """Return the arguments parsed since the last call of this method."""
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def push(self, text: str) -> str:
        """Parse further text. Return the part after the object."""
        for place, character in enumerate(text):
            self._read.append(character)
            opened = self._follow(character)
            if self._inside:
                self._arguments.append(character)
                self._inside = self._depth > 1
            elif opened and self._depth == 2 and self.name is None and self._names_function():
                self._arguments.append(character)
                self._inside = True
            elif self._depth == 0:
                self.complete = True
                return text[place + 1 :]
        return ""

    def _follow(self, character: str) -> bool:
        """Return whether `character` opens an object or a list."""
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = character == "\\"
            self._quoted = character != '"'
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
            return True
        elif character in "}]":
            self._depth -= 1
        return False

    def _names_function(self) -> bool:
        head = _HEAD.fullmatch(self.text) if len(self._read) <= _LONGEST_HEAD else None
        if head is not None and head[1] in self._names:
            self.name = head[1]
        return self.name is not None

    def whole_call(self) -> tuple[str, str] | None:
        """Return the name and arguments of a complete call in which the name is not the first field."""
        try:
            call = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        return name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


class ToolCallReader:
    """Splits one message into text and calls of the functions `names`."""

    def __init__(self, names: frozenset[str]) -> None:
        self.calls = 0
        """Number of calls begun so far."""
        self._names = names
        self._pieces: list[Piece] = []
        self._pending = ""
        self._object: _Object | None = None
        self._in_text = False

    def push(self, text: str) -> list[Piece]:
        """Add `text` and return the pieces that are certain by then."""
        for start in range(0, len(text), _BITE):
            self._pending += text[start : start + _BITE]
            while self._pending and self._read():
                pass
        return self._take()

    def finish(self) -> list[Piece]:
        """Return the remaining pieces at the end. A truncated call remains a call."""
        if self._object is not None and self._object.name is None:
            self._say(self._object.lead + self._object.text)
        elif self._object is None and (self._in_text or not self.calls):
            self._say(self._pending)
        self._pending, self._object = "", None
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(text))

    def _read(self) -> bool:
        """Parse one item of the pending text. Return False if more text is needed."""
        if self._object is not None:
            return self._read_object(self._object)
        return self._read_text() if self._in_text else self._read_opening()

    def _read_opening(self) -> bool:
        """Parse at the start or after a call, where another call or text follows."""
        rest = self._pending.lstrip(_BETWEEN if self.calls else _BEFORE)
        if self.calls and rest.startswith(CLOSE):
            self._pending = rest.removeprefix(CLOSE)
            return True
        body = rest.removeprefix(OPEN).lstrip()
        lead = len(self._pending) - len(body)
        if lead <= _LONGEST_LEAD:
            if body.startswith("{"):
                self._object = _Object(self._pending[:lead], self._names)
                self._pending = body
                return True
            if not body or OPEN.startswith(rest) or (self.calls and CLOSE.startswith(rest)):
                return False
        self._be_text(self._pending)
        return True

    def _be_text(self, text: str) -> None:
        """Emit `text`, which is not a call, even if it begins with a tag."""
        self._say(OPEN if text.startswith(OPEN) else "")
        self._pending = text.removeprefix(OPEN)
        self._in_text = True

    def _read_text(self) -> bool:
        """Parse text up to a tag."""
        before, tag, after = self._pending.partition(OPEN)
        kept = "" if tag else beginning_at_end(before, (OPEN,))
        self._say(before.removesuffix(kept))
        self._pending = tag + after + kept
        self._in_text = not tag
        return bool(tag)

    def _read_object(self, object: _Object) -> bool:
        known = object.name
        self._pending = object.push(self._pending)
        if object.name is not None:
            if known is None:
                self.calls += 1
            self._pieces.append(Piece(object.take_arguments(), self.calls - 1, object.name if known is None else None))
        if object.complete:
            self._object = None
            self._complete(object)
        return object.complete

    def _complete(self, object: _Object) -> None:
        if object.name is not None:
            return
        call = object.whole_call()
        if call is not None:
            self._pieces.append(Piece(call[1], self.calls, call[0]))
            self.calls += 1
        else:  # text to its end: a tag within it is quoted text, not a call
            self._say(object.lead + object.text)
            self._in_text = True
