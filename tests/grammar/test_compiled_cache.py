"""Compiled grammars that are kept: within their bytes, as long as they are used, and small ones whatever comes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.grammar.schemas import regex_grammar
from tgi_core.grammar import Cost, Grammar, GrammarsBusy, InvalidGrammar
from tgi_core.grammar import compiler as compilers
from tgi_core.grammar import matching as engine
from tgi_core.grammar.cache import LARGE_BYTES, SMALL_BYTES
from tgi_core.grammar.compiler import CompiledGrammar, GrammarCompiler

MB = 1 << 20
SMALL, LARGE, SLOW = Cost(10_000, 0.001), Cost(20 * MB, 0.01), Cost(10_000, 0.4)


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    """One with nothing in it."""
    made = GrammarCompiler(engine.bytes_vocabulary())
    yield made
    made.close()


def prepared(compiler: GrammarCompiler, grammar: Grammar, cost: Cost) -> CompiledGrammar:
    """A grammar that is compiled and held."""
    return compiler.prepare(grammar, cost).result()


def test_many_large_ones(compiler: GrammarCompiler) -> None:
    """Two hundred large grammars, one after the other, stay within the bound, and push no small one out."""
    small = [regex_grammar(f"small {n}") for n in range(20)]
    made = [prepared(compiler, grammar, SMALL) for grammar in small]
    for grammar in small:
        compiler.release(grammar)
    for number in range(200):
        grammar = regex_grammar(f"large {number}")
        prepared(compiler, grammar, LARGE)
        compiler.release(grammar)
        assert compiler.cached_bytes <= SMALL_BYTES + LARGE_BYTES
    assert [prepared(compiler, grammar, SMALL) for grammar in small] == made
    assert 20 < compiler.cached < 40


def test_what_is_used_is_kept(compiler: GrammarCompiler) -> None:
    """Grammars in use count: where they leave no room another large one is refused, a small one is not; released they make room."""
    large = [regex_grammar(f"large {n}") for n in range(6)]
    for grammar in large:
        prepared(compiler, grammar, LARGE)
    first, other = prepared(compiler, large[0], LARGE), regex_grammar("other")
    for _ in range(3):
        with pytest.raises(GrammarsBusy):
            compiler.prepare(other, LARGE)
    prepared(compiler, regex_grammar("small"), SMALL)
    compiler.release(large[0])
    with pytest.raises(GrammarsBusy):  # it was prepared twice
        compiler.prepare(other, LARGE)
    compiler.release(large[1])
    prepared(compiler, other, LARGE)
    assert prepared(compiler, large[0], LARGE) is first


def test_a_worn_lexer_goes(compiler: GrammarCompiler) -> None:
    """What answers add to a grammar's lexer counts, and goes once nobody uses it."""
    grammar = regex_grammar("[ab]*")
    first = prepared(compiler, grammar, SMALL)
    kept = compiler.take(grammar)
    before = compiler.cached_bytes
    compiler.give_back(kept, tokens=5000)
    assert compiler.cached_bytes - before > 5 * MB and prepared(compiler, grammar, SMALL) is first
    compiler.release(grammar)
    compiler.release(grammar)
    assert compiler.cached == 0 and compiler.cached_bytes == 0
    assert prepared(compiler, grammar, SMALL) is not first


def test_one_that_does_not_compile(compiler: GrammarCompiler) -> None:
    """Its error is raised where it is prepared, and nothing of it is kept."""
    with pytest.raises(InvalidGrammar, match="unclosed group"):
        prepared(compiler, regex_grammar("(a"), SMALL)
    assert (compiler.cached, compiler.cached_bytes) == (0, 0)
    compiler.release(regex_grammar("(a"))


def test_quick_ones_pass_slow_ones_and_all_give_way(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow grammar compiles, quick ones are compiled; both in threads that give way to all others of the process."""
    opened, nice = threading.Event(), []
    real = engine.start

    def start(vocabulary: engine.LLTokenizer, source: str) -> engine.LLMatcher:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        if "slow" in source:
            assert opened.wait(60)
        return real(vocabulary, source)

    monkeypatch.setattr(engine, "start", start)
    slow = [compiler.prepare(regex_grammar(f"slow {n}"), SLOW) for n in range(3)]
    for number in range(5):
        prepared(compiler, regex_grammar(f"quick {number}"), SMALL)
    assert not any(made.done() for made in slow)
    opened.set()
    assert [made.result() for made in slow]
    assert nice == [os.getpriority(os.PRIO_PROCESS, 0) + 10] * 8


def test_a_step_compiles_nothing_slow(compiler: GrammarCompiler) -> None:
    """A lexer that is full is renewed where that is quick; a row of a grammar that takes long ends instead."""
    quick, slow = prepared(compiler, regex_grammar("[ab]*"), SMALL), prepared(compiler, regex_grammar("[cd]*"), SLOW)
    lexer = quick.matcher()[0]
    quick.renew(lexer)
    assert quick.matcher()[0] is not lexer
    with pytest.raises(InvalidGrammar, match="too complex to continue"):
        slow.renew(slow.matcher()[0])


def test_what_is_prepared_is_tried_nowhere_else(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose grammar was prepared gets that; only one that nobody has tried is tried here."""
    monkeypatch.setattr(compilers.GrammarValidatorThread, "cost", lambda *_: pytest.fail("tried again"))
    grammar = regex_grammar("abc")
    made = prepared(compiler, grammar, SMALL)
    assert compiler.take(grammar).made.result() is made
    with pytest.raises(BaseException, match="tried again"):
        compiler.take(regex_grammar("unknown"))
