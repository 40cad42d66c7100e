"""A grammar, and what can be wrong with one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum


class GrammarKind(Enum):
    """The two kinds of grammar; the values are TGI's own."""

    JSON = "json"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must be: a JSON document that is valid under the schema `source` (JSON text), or a full match of the regular
    expression `source`."""

    kind: GrammarKind
    source: str = field(repr=False)

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for this grammar."""
        return hashlib.sha256(f"{self.kind.value}:{self.source}".encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Cost:
    """What one grammar takes: bytes once it is compiled, seconds of processor time until it is."""

    bytes: int
    seconds: float


class GrammarError(ValueError):
    """A grammar cannot be used. The message is TGI's own and may be shown to the client."""


class InvalidGrammar(GrammarError):
    """The grammar itself is at fault."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"grammar is not valid: {detail}")
        self.detail = detail


class UnsupportedGrammar(GrammarError):
    """No grammar is possible here: they are switched off, or the value is of a kind that none has."""

    def __init__(self) -> None:
        super().__init__("grammar is not supported")


class GrammarsBusy(GrammarError):
    """There is no room or no time for one more grammar at present, which says nothing about this one."""

    def __init__(self) -> None:
        super().__init__("too many large grammars are in use or being compiled; try again")
