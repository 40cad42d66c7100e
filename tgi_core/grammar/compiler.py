"""Grammars compiled for one vocabulary, the most recent ones kept."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from tgi_core.grammar import matching
from tgi_core.grammar.trial import Trial
from tgi_core.grammar.value import Grammar, InvalidGrammar

_log = logging.getLogger(__name__)

CAPACITY = 64
"""Compiled grammars kept; TGI keeps 32."""


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
        self._capacity = capacity
        self._trial = Trial()
        self._known: OrderedDict[bytes, CompiledGrammar | str] = OrderedDict()
        self._compiling = threading.Lock()

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
        return len(self._known)

    @classmethod
    def for_model(cls, directory: Path, eos_ids: frozenset[int]) -> GrammarCompiler | None:
        """A compiler for the tokenizer.json of a model directory; None, with a warning, when its tokenizer cannot have grammars."""
        try:
            text = (directory / "tokenizer.json").read_text(encoding="utf-8")
            return cls(matching.vocabulary_of(text, eos_ids))
        except (OSError, ValueError) as error:
            _log.warning("grammars are not supported with this model: %s", error)
            return None

    @classmethod
    def for_checking(cls) -> GrammarCompiler:
        """A compiler without a model, for a process that only wants to know whether a grammar is valid."""
        return cls(matching.bytes_vocabulary())

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """The compiled grammar. Milliseconds at best, at worst some two seconds. Raises InvalidGrammar."""
        outcome = self._recall(grammar.digest)
        if outcome is None:
            with self._compiling:
                outcome = self._recall(grammar.digest)
                if outcome is None:
                    outcome = self._compile(grammar)
                    self._remember(grammar.digest, outcome)
        if isinstance(outcome, str):
            raise InvalidGrammar(outcome)
        return outcome

    def close(self) -> None:
        """End the child process. Idempotent."""
        self._trial.close()

    def _recall(self, digest: bytes) -> CompiledGrammar | str | None:
        outcome = self._known.get(digest)
        if outcome is not None:
            try:
                self._known.move_to_end(digest)
            except KeyError:  # another thread has just dropped it
                return None
        return outcome

    def _remember(self, digest: bytes, outcome: CompiledGrammar | str) -> None:
        self._known[digest] = outcome
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def _compile(self, grammar: Grammar) -> CompiledGrammar | str:
        try:
            source = matching.engine_source(grammar)
            return self._trial.run(source) or CompiledGrammar(self._vocabulary, source)
        except InvalidGrammar as error:
            return error.detail
