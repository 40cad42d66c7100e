"""Grammars that answers must keep: what clients ask for, as one value. Compiling is in `tgi_core.grammar.compiler`."""

from tgi_core.grammar.shapes import parse_grammar
from tgi_core.grammar.value import Grammar, GrammarError, GrammarKind, InvalidGrammar, UnsupportedGrammar

__all__ = ["Grammar", "GrammarError", "GrammarKind", "InvalidGrammar", "UnsupportedGrammar", "parse_grammar"]
