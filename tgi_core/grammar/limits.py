"""How large a grammar may be, checked before anything is made of it.

Depth is bounded because parsers of schemas recurse; the rest bounds the work of one compilation before llguidance's own limits count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tgi_core.grammar.value import InvalidGrammar

MAX_BYTES = 64 * 1024
"""Of a schema as JSON text, or of a regular expression, in UTF-8."""
MAX_DEPTH = 64
"""Containers around the innermost value of a schema: 32 nested objects, since `properties` is a container too."""
MAX_NODES = 4096
"""Objects and arrays in a schema."""
MAX_ENTRIES = 10_000
"""Of one array or object in a schema, such as an `enum`."""

MAX_SECONDS = 0.5
"""Of processor time that one may take to compile; usual ones take a millisecond, one of 40 kB takes 20."""
MAX_COMPILED_BYTES = 32 << 20
"""That one may take once it is compiled; usual ones take 10 to 100 kB."""
QUICK_SECONDS = 0.1
"""Those that take more wait for one another, and for nobody else."""
NICENESS = 10
"""Of whatever compiles: steps and clients go first."""


def check_text(text: str) -> None:
    """Raises InvalidGrammar when a regular expression, or a schema as text, is too long or not Unicode."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidGrammar("it holds characters that are not Unicode") from None
    if length > MAX_BYTES:
        raise InvalidGrammar(f"it has {length} bytes, more than {MAX_BYTES}")


def check_document(document: Any) -> None:
    """Raises InvalidGrammar when a schema is too deep or has too many parts."""
    nodes = 0
    pending = [(document, 1)]
    while pending:
        value, depth = pending.pop()
        if not isinstance(value, dict | list):
            continue
        nodes += 1
        if depth > MAX_DEPTH:
            raise InvalidGrammar(f"it is nested deeper than {MAX_DEPTH}")
        if nodes > MAX_NODES:
            raise InvalidGrammar(f"it has more than {MAX_NODES} objects and arrays")
        if len(value) > MAX_ENTRIES:
            raise InvalidGrammar(f"one of its arrays or objects has {len(value)} entries, more than {MAX_ENTRIES}")
        pending += [(child, depth + 1) for child in _children(value)]


def _children(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value
