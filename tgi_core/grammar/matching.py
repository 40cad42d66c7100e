"""llguidance as it is used here: one place for its limits, its options and its error texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from tgi_core.grammar.documents import read_schema, write_schema
from tgi_core.grammar.limits import check_text
from tgi_core.grammar.preparing import prepare
from tgi_core.grammar.value import Grammar, GrammarKind, InvalidGrammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIMITS = LLParserLimits(
    max_grammar_size=200_000,
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=200_000,  # about 14 ms
    step_max_items=50_000,  # about 3 ms
    max_items_in_row=20_000,  # an object of 4,000 optional properties has four items for each
    max_lexer_states=10_000,  # of 1 to 2 kB
    verbose_errors=False,  # schemas are the clients' business
)
"""Deterministic bounds on the work and the memory of one grammar."""

_OPTIONS: JsonCompileOptions = {
    "whitespace_pattern": "[ ]?",  # TGI's own; a model that may write any white space sometimes writes nothing else
    "lenient": False,  # a keyword that would be ignored is an error, so that every complete answer is valid
    "coerce_one_of": False,
}
_PREFIX = re.compile(r"^(at \d+\(\d+\): )?(invalid regex .*\(in regex\): )?", re.DOTALL)
_CAUSE = re.compile(r"^error: (.+)$", re.MULTILINE)
_LONGEST = 200


def engine_source(grammar: Grammar) -> str:
    """A grammar in llguidance's own notation. Raises InvalidGrammar."""
    if grammar.kind is GrammarKind.REGEX:
        return _regex_source(grammar.source)
    schema = write_schema(prepare(read_schema(grammar.source)))
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
    except ValueError as error:
        raise InvalidGrammar(readable(str(error))) from None


def _regex_source(regex: str) -> str:
    r"""`\d`, `\w` and `\s` mean ASCII, as in TGI: whoever asks for four digits reads them with `int`, or with JavaScript."""
    check_text(regex)
    if (len(regex) - len(regex.rstrip("\\"))) % 2:  # llguidance would drop it
        raise InvalidGrammar("it ends in the middle of an escape sequence")
    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(regex, 'dws')}/")


def start(vocabulary: LLTokenizer, source: str) -> LLMatcher:
    """A matcher at the start of an answer, its first mask computed; errors are in `get_error()`."""
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def fault(vocabulary: LLTokenizer, first: LLMatcher) -> str:
    """What is wrong with a grammar at its start or two tokens into an answer, "" if nothing: `a{1000000}` begins well, and is too large
    to go on with."""
    ending = sum(1 << id for id in set(vocabulary.eos_tokens))
    for pick in (_lowest, _highest):
        matcher = first.deep_copy()
        for _ in range(2):
            allowed = 0 if matcher.is_error() else int.from_bytes(matcher.compute_bitmask(), "little") & ~ending
            if not allowed:
                break
            matcher.consume_token(pick(allowed))
            matcher.compute_bitmask()
        if matcher.is_error():
            return readable(matcher.get_error()) or "it is too complex"
    return ""


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _highest(bits: int) -> int:
    return bits.bit_length() - 1


def readable(error: str) -> str:
    """One line of what llguidance says, "" if it says nothing."""
    text = error.split("<non-verbose/>")[0].split("<backtrace")[0].strip()
    if text.startswith("panic"):
        return "it is too complex"
    if text.startswith("NoExtension"):
        return "nothing can match it"
    cause = _CAUSE.search(text)
    lines = (cause.group(1) if cause else _PREFIX.sub("", text)).splitlines()
    line = lines[0].strip() if lines else ""
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def vocabulary_of(tokenizer_json: str, eos_ids: frozenset[int]) -> LLTokenizer:
    """The tokens that masks are made for, from the text of tokenizer.json. Takes about a second for 128,000 tokens.

    Raises ValueError for a kind of tokenizer that llguidance does not know, and for one without an end of sequence.
    """
    if not eos_ids:
        raise ValueError("the model has no end-of-sequence token, without which an answer cannot end")
    return LLTokenizer(tokenizer_json, eos_token=sorted(eos_ids))


def bytes_vocabulary() -> LLTokenizer:
    """A vocabulary of single bytes: what grammars are checked against where no model is at hand."""
    return LLTokenizer("byte")
