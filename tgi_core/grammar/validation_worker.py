"""Worker that compiles grammars to measure their cost, and checks responses, started as a script by `tgi_core.grammar.validator`.

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
from tgi_core.grammar.limits import MAX_BYTES, MAX_COMPILED_BYTES
from tgi_core.grammar.value import Cost, Grammar, GrammarKind, GrammarReport, InvalidGrammar
from tgi_core.workers.priority import LOW
from tgi_core.workers.serving import serve

MEMORY_BYTES = 1 << 30
"""Address space limit of the process."""
_LONGEST = 200
"""Maximum length of an error message, in characters, since verdicts are remembered."""
_MOST_FORMATS = 8


def check_grammar(vocabulary: LLTokenizer, grammar: Grammar, max_bytes: int = MAX_BYTES) -> tuple[str, GrammarReport]:
    """Return what is wrong with a grammar, "" if nothing, and what is known about it."""
    began, size, source = process_time(), 0, matching.EngineGrammar("")
    try:
        source = matching.translate(grammar, max_bytes)
        if source.checked:
            _check_schema(grammar.source)
        before = used_bytes()
        first = matching.start(vocabulary, source.text)
        fault = matching.fault(vocabulary, first)
        size = max(used_bytes() - before, 0)
    except InvalidGrammar as error:
        fault = error.detail
    except MemoryError:
        fault = "it takes too much memory to compile"
    if not fault and size > MAX_COMPILED_BYTES:
        fault = f"it is too large: it takes {size >> 20} MB compiled, more than {MAX_COMPILED_BYTES >> 20}"
    cost = Cost(size, process_time() - began)
    return fault[:_LONGEST], GrammarReport(cost, source.checked, _brief(source.formats))


def _brief(formats: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each[:_LONGEST] for each in formats[:_MOST_FORMATS])


def answered(vocabulary: LLTokenizer, request: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """Answer a request: a JSON list of the kind and the source of a grammar, or of a schema and a response under `violation`."""
    asked = json.loads(request)
    if isinstance(asked, dict):
        return json.dumps(_violation(*asked["violation"])).encode()
    kind, source = asked
    fault, found = check_grammar(vocabulary, Grammar(GrammarKind(kind), source), max_bytes)
    return json.dumps([fault, found.cost.bytes, found.cost.seconds, found.checked, found.formats]).encode()


def _check_schema(source: str) -> None:
    from tgi_core.grammar.checking import check_schema  # the library takes memory, and few workers need it

    check_schema(source)


def _violation(source: str, text: str) -> str:
    from tgi_core.grammar.checking import violation

    return violation(source, text)


def main(seconds: float, max_bytes: int) -> None:
    """Answer requests; each may take `seconds` of CPU time."""
    vocabulary = matching.bytes_vocabulary()
    # allocates shared state now, so that it is not counted as a grammar's cost
    check_grammar(vocabulary, Grammar(GrammarKind.JSON, '{"type":"integer"}'))

    def answer(request: bytes) -> bytes:
        return answered(vocabulary, request, max_bytes)

    serve(answer, seconds, MEMORY_BYTES)


if __name__ == "__main__":
    os.nice(LOW)
    main(float(sys.argv[2]), int(sys.argv[3]))
