"""Whatever a client sends as a grammar is refused by name, or compiles and masks within its limits."""

from __future__ import annotations

import resource

from tests.grammar.device import compiled
from tests.grammar.hostile import SHAPES
from tests.grammar.schemas import regex_grammar
from tgi_core.grammar import GrammarError, parse_grammar
from tgi_core.grammar.cache import LARGE_BYTES, SMALL_BYTES
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.server.masks import Constraint


def outcome(compiler: GrammarCompiler, shape: dict[str, object]) -> str:
    """ "ok", or the text of the error; the first steps of an answer are made too."""
    try:
        grammar = parse_grammar(shape)
        assert grammar is not None
        constraint = Constraint(compiled(compiler, grammar), ())
        for _ in range(6):
            mask = int.from_bytes(constraint.mask(()), "little")
            assert mask, "a mask that allows nothing"
            constraint.mask((mask.bit_length() - 1,))
    except GrammarError as error:
        return str(error)
    return "ok"


def test_a_hostile_corpus(compiler: GrammarCompiler) -> None:
    """Hundreds of hostile grammars: a typed error of one short line or a mask, nothing else; an honest one still works after them."""
    assert len(SHAPES) >= 400
    outcomes = [outcome(compiler, shape) for shape in SHAPES]
    assert sum(text == "ok" for text in outcomes) > 50
    for text in outcomes:
        assert text in ("ok", "grammar is not supported") or text.startswith("grammar is not valid: ")
        assert len(text) < 400 and "\n" not in text and "panic" not in text, text
    assert compiler.cached_bytes <= SMALL_BYTES + LARGE_BYTES
    assert outcome(compiler, {"type": "regex", "value": regex_grammar("[a-z]+").source}) == "ok"


def test_hostile_grammars_leave_little_behind(compiler: GrammarCompiler) -> None:
    """Grammars whose lexers grow without end are stopped by their limits: their memory is bounded."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for width in (40, 60, 80):
        shared = compiled(compiler, regex_grammar(f"(a|b)*a(a|b){{{width}}}"))
        constraint = Constraint(shared, ())
        for step in range(600):
            ids = [id for id in range(100) if int.from_bytes(constraint.mask(()), "little") >> id & 1]
            constraint.mask((ids[step * step % 7 % len(ids)],))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
