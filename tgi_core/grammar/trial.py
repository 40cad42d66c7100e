"""Worker that compiles grammars to measure their cost, started as a script by `tgi_core.grammar.judging`.

llguidance limits most but not all of its work by fuel: the intersection of a dozen patterns or a `multipleOf` of a million runs for
hours. So each grammar is first compiled here, with limits on CPU time and memory.
"""

from __future__ import annotations

import json
import os
import sys
from time import process_time

from llguidance import LLTokenizer

from tgi_core.grammar import matching
from tgi_core.grammar.heap import used_bytes
from tgi_core.grammar.limits import MAX_COMPILED_BYTES, NICENESS
from tgi_core.grammar.value import Grammar, GrammarKind, InvalidGrammar
from tgi_core.workers.serving import serve

MEMORY_BYTES = 1 << 30
"""Address space limit of the process."""
_LONGEST = 200
"""Maximum length of an error message, in characters, since verdicts are remembered."""


def judged(vocabulary: LLTokenizer, grammar: Grammar) -> tuple[str, int, float]:
    """Return what is wrong with a grammar ("" if nothing), its compiled size in bytes, and its compile time in seconds."""
    began, size = process_time(), 0
    try:
        source = matching.engine_source(grammar)
        before = used_bytes()
        first = matching.start(vocabulary, source)
        fault = matching.fault(vocabulary, first)
        size = max(used_bytes() - before, 0)
    except InvalidGrammar as error:
        fault = error.detail
    except MemoryError:
        fault = "it takes too much memory to compile"
    if not fault and size > MAX_COMPILED_BYTES:
        fault = f"it is too large: it takes {size >> 20} MB compiled, more than {MAX_COMPILED_BYTES >> 20}"
    return fault[:_LONGEST], size, process_time() - began


def main(seconds: float) -> None:
    """Answer requests: JSON lists of kind and source. Each may take `seconds` of CPU time."""
    vocabulary = matching.bytes_vocabulary()
    # allocates shared state now, so that it is not counted as a grammar's cost
    judged(vocabulary, Grammar(GrammarKind.JSON, '{"type":"integer"}'))

    def answer(request: bytes) -> bytes:
        kind, source = json.loads(request)
        return json.dumps(judged(vocabulary, Grammar(GrammarKind(kind), source))).encode()

    serve(answer, seconds, MEMORY_BYTES)


if __name__ == "__main__":
    os.nice(NICENESS)
    main(float(sys.argv[2]))
