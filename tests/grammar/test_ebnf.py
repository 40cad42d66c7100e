"""Grammars in GBNF and in Lark hold their answers, and cost a process nothing."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from tests.grammar.device import compiled
from tests.grammar.walks import walk
from tgi_core.grammar import Grammar, GrammarKind, InvalidGrammar, matching, parse_grammar
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.grammar.limits import MAX_RULES

SQL = """
root ::= select   # as in vLLM's documentation
select ::= "SELECT " column " FROM " table
  | "SHOW " table
column ::= "col_" [1-2] | "\\u00e9\\u0041"
table ::= ("table" "_"){1,2} [^a-z"\\n]
"""
LARK = """
%import common.INT
start: sum
sum: INT ("+" INT)*
"""
STACK_BYTES = 2 << 20
"""What a thread gets where `ulimit -s` is unlimited."""


def ebnf(source: str) -> Grammar:
    """A grammar of this kind."""
    return Grammar(GrammarKind.EBNF, source)


def chain(rules: int) -> str:
    """Each rule is the next one and a letter."""
    made = "".join(f'r{place}: r{place + 1} "a"\n' for place in range(rules - 2))
    return f'start: r0\n{made}r{rules - 2}: "b"\n'


@pytest.mark.parametrize(
    ("source", "regex"),
    [
        (SQL, r"SELECT (col_[12]|éA) FROM (table_){1,2}[^a-z\"\n]|SHOW (table_){1,2}[^a-z\"\n]"),
        (LARK, r"[0-9]+(\+[0-9]+)*"),
        ('root ::= "(" root ")" | "x"', r"\(*x\)*"),
        ("root::=[\\x41-\\u0043]+", "[A-C]+"),
        ("root ::= [^\\U0001F600]", "."),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_answers(source: str, regex: str, seed: int) -> None:
    """Whatever ends is a sentence of the grammar."""
    text = walk(ebnf(source), seed).decode()
    assert re.fullmatch(regex, text), text


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("(", "expecting rule"),
        ("", "Empty grammar"),
        ("root ::= other", "Rule 'other' not found"),
        ("other ::= 'x'", "Expected name"),
        ("start: other", "unknown name"),
        ("start: start", "match"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested too deeply"),
        ("start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "too deeply nested"),
        ('root ::= "\\ud800"', "not a Unicode character"),
        ('start: "\ud800"', "not Unicode"),
        ("start: /(?=a)b/", "look-around"),
        ("x" * 70_000, "more than 65536"),
        (chain(MAX_RULES + 1), f"more than {MAX_RULES} rules"),
        ("".join(f'r{n} ::= "a"\n' for n in range(MAX_RULES)) + "root ::= r0", f"more than {MAX_RULES} rules"),
    ],
    ids=lambda value: value[:12],
)
def test_what_is_wrong(compiler: GrammarCompiler, source: str, detail: str) -> None:
    """A bad grammar is one line that names the cause, in this process and in the one that tries it."""
    with pytest.raises(InvalidGrammar, match=detail) as raised:
        compiled(compiler, ebnf(source))
    assert "\n" not in str(raised.value)


def test_the_longest_chain_fits_a_small_stack() -> None:
    """llguidance recurses from rule to rule: as many rules as are allowed compile in a thread with a stack of 2 MB."""
    found: list[str] = []

    def start() -> None:
        found.append(matching.start(matching.bytes_vocabulary(), matching.translate(ebnf(chain(MAX_RULES))).text).get_error())

    usual = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=start)
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    assert found == [""]


@pytest.mark.parametrize("value", [None, 5, {"a": 1}, ["root ::= x"]])
def test_a_grammar_is_a_text(value: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidGrammar, match="must be a string"):
        parse_grammar({"type": "ebnf", "value": value})
