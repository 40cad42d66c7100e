"""Compiled grammars: bounded, remembered, and tried where they can do no harm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.grammar.device import compiled
from tests.grammar.schemas import json_grammar, regex_grammar
from tgi_core.cli.shard_flags import shard_flags
from tgi_core.cli.shard_openers import open_masks
from tgi_core.config import Settings
from tgi_core.grammar import Grammar, GrammarKind, InvalidGrammar
from tgi_core.grammar import matching as engine
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("grammar", "detail"),
    [
        (regex_grammar("a\\"), "in the middle of an escape"),
        (regex_grammar("(?=a)b"), "look-around"),
        (json_grammar({"type": "stranger"}), "Invalid type: stranger"),
        (json_grammar({"$dynamicRef": "#a"}), "keywords are not supported: .*dynamicRef"),
        (json_grammar({"type": "string", "not": {"type": "string"}}), "nothing can match it"),
        (json_grammar({"$ref": "#"}), "no finite value can match it"),
        (json_grammar({"$ref": "file:///etc/passwd"}), "does not fetch"),
        (json_grammar({"type": "integer", "minimum": 3, "maximum": 2}), "Unsatisfiable"),
        (Grammar(GrammarKind.JSON, "[" * 5000), "nested too deep"),
        (Grammar(GrammarKind.JSON, "x" * 70000), "more than 65536"),
        (Grammar(GrammarKind.REGEX, "x" * 70000), "more than 65536"),
        (Grammar(GrammarKind.REGEX, "\ud800"), "not Unicode"),
    ],
)
def test_what_is_wrong(compiler: GrammarCompiler, grammar: Grammar, detail: str) -> None:
    """The error is one line that names the cause; limits hold for grammars that no router has parsed, too."""
    with pytest.raises(InvalidGrammar, match=detail) as raised:
        compiled(compiler, grammar)
    assert "\n" not in str(raised.value)


def test_a_grammar_that_takes_for_ever_is_given_up(compiler: GrammarCompiler) -> None:
    """The child that tries it is ended; the next grammar gets a new one."""
    endless = json_grammar({"allOf": [{"type": "string", "pattern": f".*a{n}.*"} for n in range(30)]})
    with pytest.raises(InvalidGrammar, match="it is too complex"):
        compiled(compiler, endless)
    compiled(compiler, regex_grammar("after that"))


def test_threads_share_one_compilation(compiler: GrammarCompiler) -> None:
    """Many threads that want the same grammar at once get the same one."""
    grammar = json_grammar({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(50)}})
    with ThreadPoolExecutor(8) as pool:
        assert len({id(item) for item in pool.map(partial(compiled, compiler), [grammar] * 16)}) == 1


def test_a_model_that_cannot_have_grammars(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No end of sequence, or no tokenizer that can be read: no compiler, and a warning that says why."""
    assert GrammarCompiler.for_model(DEMO, frozenset()) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert GrammarCompiler.for_model(tmp_path, frozenset({1})) is None
    assert "no end-of-sequence token" in caplog.text and "grammars are not supported with this model" in caplog.text


def test_digits_are_ascii(compiler: GrammarCompiler) -> None:
    r"""`\d`, `\w` and `\s` allow what TGI's allow."""
    for regex in ("\\d+", "\\w+", "[\\d\\w\\s]+"):
        mask = int.from_bytes(compiled(compiler, regex_grammar(regex)).matcher()[1].compute_bitmask(), "little")
        vocabulary = engine.vocabulary_of((DEMO / "tokenizer.json").read_text(), frozenset({0}))
        texts = [vocabulary.decode_bytes([id]) for id in range(2048) if mask >> id & 1]
        assert len(texts) >= 10 and all(text.isascii() for text in texts)


def test_what_begins_well_and_cannot_go_on(compiler: GrammarCompiler) -> None:
    """A grammar that outgrows its limits with the first token is refused when it is tried: it would hold up a shard for as long."""
    for regex in ("a{1000000}", "(a?){3000}a{3000}", "x?a{100000000}"):
        with pytest.raises(InvalidGrammar, match=r"too many (expressions|states)|too complex"):
            compiled(compiler, regex_grammar(regex))


def test_where_grammars_are_switched_off_there_are_no_masks(demo_tokenizer: Tokenizer) -> None:
    """A shard that is told so makes none, and is told so by the flags of its parent."""
    off = Settings(disable_grammar_support=True, model_id=str(DEMO))
    assert open_masks(DEMO, demo_tokenizer, off) is None
    assert "--disable-grammar-support" in shard_flags(off)
    masks = open_masks(DEMO, demo_tokenizer, Settings())
    assert masks is not None
    masks.close()
