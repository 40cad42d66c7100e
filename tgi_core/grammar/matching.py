"""Interface to llguidance: translation of every kind of grammar, limits, options and error messages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from tgi_core.grammar.documents import read_schema
from tgi_core.grammar.ebnf import to_lark
from tgi_core.grammar.finite import without_endless
from tgi_core.grammar.keywords import rewrite
from tgi_core.grammar.limits import MAX_BYTES, check_document, check_text
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
    verbose_errors=False,  # schemas are private data of clients
)
"""Deterministic limits on the work and memory of one grammar."""

_OPTIONS: JsonCompileOptions = {
    "whitespace_pattern": "[ ]?",  # as in TGI; with unlimited whitespace, some models generate nothing else
    "lenient": False,  # unsupported keywords are errors, so that every complete answer is valid
    "coerce_one_of": True,  # `tgi_core.grammar.keywords` proves that alternatives exclude each other, or has the response checked
}
_PREFIX = re.compile(r"^(at \d+\(\d+\): )?(invalid regex .*\(in regex\): )?", re.DOTALL)
_CAUSE = re.compile(r"^error: (.+)$", re.MULTILINE)
_CLEARER = {
    "Unimplemented keys: ": "these keywords are not supported: ",
}
"""llguidance's messages that name its own options, and what they mean to a client."""
_LONGEST = 200
_EXPANSION = 8
"""Maximum growth of a schema by rewriting, in multiples of the limits of schemas."""


@dataclass(frozen=True, slots=True)
class EngineGrammar:
    """A grammar in llguidance's notation.

    `checked`: keywords of a JSON schema that the masks do not enforce, so the complete response must be checked. `formats`: unknown
    formats, which nothing enforces.
    """

    text: str
    checked: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


def translate(grammar: Grammar, max_bytes: int = MAX_BYTES) -> EngineGrammar:
    """Translate a grammar to llguidance's notation. Raises InvalidGrammar."""
    if grammar.kind is GrammarKind.REGEX:
        return EngineGrammar(_regex_source(grammar.source, max_bytes))
    if grammar.kind is GrammarKind.EBNF:
        return EngineGrammar(LLMatcher.grammar_from_lark(to_lark(grammar.source, max_bytes)))
    try:
        rewritten = rewrite(read_schema(grammar.source, max_bytes), _holds)
    except RecursionError:  # from a chain of references
        raise InvalidGrammar("its references are nested too deeply") from None
    if not isinstance(rewritten.schema, dict):
        raise InvalidGrammar("nothing can match it")
    schema = without_endless(prepare(rewritten.schema))
    check_document(schema, max_bytes, expansion=_EXPANSION)
    try:
        source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)
    except ValueError as error:
        raise InvalidGrammar(readable(str(error))) from None
    return EngineGrammar(source, rewritten.checked, rewritten.formats)


def _holds(schema: dict[str, Any]) -> bool:
    """Return whether llguidance can enforce a schema."""
    try:
        source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)
    except ValueError:
        return False
    return not LLMatcher.validate_grammar(source, limits=LIMITS)


def _regex_source(regex: str, max_bytes: int) -> str:
    r"""Translate a regex. `\d`, `\w` and `\s` match ASCII only, as in TGI, since clients parse digits with `int` or JavaScript."""
    check_text(regex, max_bytes)
    if (len(regex) - len(regex.rstrip("\\"))) % 2:  # llguidance would drop the backslash
        raise InvalidGrammar("it ends in the middle of an escape sequence")
    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(regex, 'dws')}/")


def start(vocabulary: LLTokenizer, source: str) -> LLMatcher:
    """Create a matcher at the start of an answer and compute its first mask. Errors are in `get_error()`."""
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def fault(vocabulary: LLTokenizer, first: LLMatcher) -> str:
    """Describe what is wrong with a grammar at the start or after two tokens, "" if nothing. `a{1000000}` compiles but is too large
    after its first tokens."""
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
    """Shorten an llguidance error to one line, "" if it is empty."""
    text = error.split("<non-verbose/>")[0].split("<backtrace")[0].strip()
    if text.startswith("panic"):
        return "it is too complex"
    if text.startswith("NoExtension"):
        return "nothing can match it"
    cause = _CAUSE.search(text)
    lines = (cause.group(1) if cause else _PREFIX.sub("", text)).splitlines()
    line = lines[0].strip() if lines else ""
    for beginning, meaning in _CLEARER.items():
        if line.startswith(beginning):
            line = meaning + line.removeprefix(beginning)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def vocabulary_of(tokenizer_json: str, eos_ids: frozenset[int]) -> LLTokenizer:
    """Create the vocabulary for masks from the text of tokenizer.json. Takes about a second for 128,000 tokens.

    Raises ValueError for a tokenizer type that llguidance does not support, or without end-of-sequence ids.
    """
    if not eos_ids:
        raise ValueError("the model has no end-of-sequence token, so answers could not end")
    return LLTokenizer(_with_known_decoder(tokenizer_json), eos_token=sorted(eos_ids))


def _with_known_decoder(tokenizer_json: str) -> str:
    """Replace the decoder of SentencePiece unigrams such as T5's by one with the same pieces, which llguidance knows from Llama."""
    if '"Metaspace"' not in tokenizer_json:
        return tokenizer_json
    parts = json.loads(tokenizer_json)
    decoder = parts.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "Metaspace":
        return tokenizer_json
    space = {"type": "Replace", "pattern": {"String": decoder.get("replacement", "\u2581")}, "content": " "}
    parts["decoder"] = {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(parts)


def bytes_vocabulary() -> LLTokenizer:
    """Vocabulary of single bytes, to check grammars without a model."""
    return LLTokenizer("byte")
