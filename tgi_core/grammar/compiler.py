"""Grammars compiled for one vocabulary, the most recent ones kept."""

from __future__ import annotations

import logging
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from tgi_core.grammar import matching
from tgi_core.grammar.outcomes import CAPACITY, Outcomes
from tgi_core.grammar.trial import Trial
from tgi_core.grammar.value import Grammar, InvalidGrammar

_log = logging.getLogger(__name__)


class CompiledGrammar:
    """A grammar that compiled. Its matchers share one lexer, whose states add up over all of them and have a limit."""

    def __init__(self, vocabulary: LLTokenizer, source: str) -> None:
        self._vocabulary, self._source = vocabulary, source
        self._first = self._start()

    def matcher(self) -> tuple[LLMatcher, LLMatcher]:
        """(what stands for its lexer, a matcher at the start of an answer); takes microseconds."""
        first = self._first
        return first, first.deep_copy()

    def renew(self, lexer: LLMatcher) -> None:
        """Compile again, unless `lexer` is no longer in use: matchers to come share nothing with those before. Raises InvalidGrammar."""
        if self._first is lexer:
            self._first = self._start()

    def _start(self) -> LLMatcher:
        first = matching.start(self._vocabulary, self._source)
        if first.is_error():
            raise InvalidGrammar(matching.readable(first.get_error()))
        return first


class GrammarCompiler:
    """Compiles grammars, and remembers the last ones with their outcome, good or bad. Thread-safe; never called on an event loop."""

    def __init__(self, vocabulary: LLTokenizer, capacity: int = CAPACITY) -> None:
        self._vocabulary = vocabulary
        self._trial = Trial()
        self._outcomes = Outcomes(self._compile, capacity)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that its masks have a bit for; masks may be longer."""
        return self._vocabulary.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return tuple(self._vocabulary.eos_tokens)

    @property
    def cached(self) -> int:
        """Number of grammars whose outcome is remembered."""
        return len(self._outcomes)

    @classmethod
    def for_model(cls, directory: Path, eos_ids: frozenset[int]) -> GrammarCompiler | None:
        """A compiler for the tokenizer.json of a model directory; None, with a warning, when its tokenizer cannot have grammars."""
        try:
            text = (directory / "tokenizer.json").read_text(encoding="utf-8")
            return cls(matching.vocabulary_of(text, eos_ids))
        except (OSError, ValueError) as error:
            _log.warning("grammars are not supported with this model: %s", error)
            return None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """The compiled grammar. Milliseconds at best, at worst some two seconds. Raises InvalidGrammar."""
        return self._outcomes.of(grammar)

    def close(self) -> None:
        """End the child process. Idempotent."""
        self._trial.close()

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        source = matching.engine_source(grammar)
        if fault := self._trial.run(source):
            raise InvalidGrammar(fault)
        return CompiledGrammar(self._vocabulary, source)
