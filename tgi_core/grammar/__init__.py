"""Grammars that constrain generated text. For compiling them, see `tgi_core.grammar.compiler`."""

from tgi_core.grammar.shapes import parse_grammar
from tgi_core.grammar.value import (
    Cost,
    Grammar,
    GrammarError,
    GrammarKind,
    GrammarReport,
    GrammarsBusy,
    InvalidGrammar,
    UnsupportedGrammar,
)

__all__ = [
    "Cost",
    "Grammar",
    "GrammarError",
    "GrammarKind",
    "GrammarReport",
    "GrammarsBusy",
    "InvalidGrammar",
    "UnsupportedGrammar",
    "parse_grammar",
]
