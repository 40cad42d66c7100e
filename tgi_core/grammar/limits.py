"""Limits of grammars: their size and depth, and the CPU time and memory of their compilation.

Depth is limited because schema parsers recurse. The other limits bound the work of a compilation until llguidance's own limits
apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tgi_core.grammar.value import InvalidGrammar

MAX_BYTES = 64 * 1024
"""Default maximum size of a schema's JSON text or of a regular expression, in UTF-8. With a larger one, the numbers of containers
and entries grow in proportion."""
MAX_DEPTH = 64
"""Maximum nesting of containers in a schema: 32 nested objects, since `properties` is a container too."""
MAX_NODES = 4096
"""Maximum number of objects and arrays in a schema."""
MAX_ENTRIES = 10_000
"""Maximum entries of one array or object in a schema, such as an `enum`."""
MAX_RULES = 400
"""Maximum number of rules of a grammar in EBNF. llguidance recurses from rule to rule: 500 in a chain fit a stack of 2 MB, and about
4,000 one of 8 MB, beyond which the process ends with a segmentation fault."""

MAX_SECONDS = 0.5
"""CPU time limit for compiling a grammar. Typical grammars take a millisecond, one of 40 kB takes 20."""
MAX_COMPILED_BYTES = 32 << 20
"""Memory limit of a compiled grammar. Typical grammars take 10 to 100 kB."""
QUICK_SECONDS = 0.1
"""CPU time above which a grammar counts as slow. Slow grammars have a separate queue."""


def check_text(text: str, max_bytes: int = MAX_BYTES) -> None:
    """Check the length and encoding of a regular expression or a schema's text. Raises InvalidGrammar."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidGrammar("it contains characters that are not Unicode") from None
    if length > max_bytes:
        raise InvalidGrammar(f"it has {length} bytes, more than {max_bytes}; the server's --max-grammar-bytes sets the limit")


def check_document(document: Any, max_bytes: int = MAX_BYTES, expansion: int = 1) -> None:
    """Check the depth and size of a schema. A rewritten one may be larger, by the factor `expansion`. Raises InvalidGrammar."""
    scale = max(max_bytes / MAX_BYTES, 1) * expansion
    deepest, most_nodes, most_entries = MAX_DEPTH * expansion, int(MAX_NODES * scale), int(MAX_ENTRIES * scale)
    nodes = 0
    pending = [(document, 1)]
    while pending:
        value, depth = pending.pop()
        if not isinstance(value, dict | list):
            continue
        nodes += 1
        if depth > deepest:
            raise InvalidGrammar(f"it is nested deeper than {deepest}")
        if nodes > most_nodes:
            raise InvalidGrammar(f"it has more than {most_nodes} objects and arrays")
        if len(value) > most_entries:
            raise InvalidGrammar(f"one of its arrays or objects has {len(value)} entries, more than {most_entries}")
        pending += [(child, depth + 1) for child in _children(value)]


def _children(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value
