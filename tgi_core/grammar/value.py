"""Grammars, their kinds and their errors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum


class GrammarKind(Enum):
    """Kinds of grammar; the first two values are TGI's, the third is SGLang's."""

    JSON = "json"
    REGEX = "regex"
    EBNF = "ebnf"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint on an answer. Depending on `kind`, `source` is the JSON text of a schema that the answer must be valid under, or a
    regular expression or a grammar in EBNF that must match the whole answer."""

    kind: GrammarKind
    source: str = field(repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the grammar, 32 bytes."""
        return hashlib.sha256(f"{self.kind.value}:{self.source}".encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a grammar: its compiled size in bytes, and the CPU time to compile it in seconds."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """What is known about a valid grammar. `checked`: keywords of a JSON schema that masks do not enforce, so that a complete response
    must be checked. `formats`: unknown formats, which nothing enforces."""

    cost: Cost
    checked: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


class GrammarError(ValueError):
    """A grammar cannot be used. The message is TGI's and may be shown to the client."""


class InvalidGrammar(GrammarError):
    """The grammar is invalid."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"grammar is not valid: {detail}")
        self.detail = detail


class UnsupportedGrammar(GrammarError):
    """Grammars are disabled, or the value has an unsupported type."""

    def __init__(self) -> None:
        super().__init__("grammar is not supported")


class GrammarsBusy(GrammarError):
    """No memory or worker is currently available for another grammar; this one may be valid."""

    def __init__(self) -> None:
        super().__init__("too many large grammars are in use or being compiled; try again")
