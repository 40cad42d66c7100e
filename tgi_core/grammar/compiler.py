"""Grammars compiled for one vocabulary: tried first, compiled beside the steps, and kept while they are used."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from tgi_core.grammar import matching
from tgi_core.grammar.cache import LARGE_BYTES, SMALL_BYTES, CompiledCache, Entry
from tgi_core.grammar.judging import JudgeThread
from tgi_core.grammar.limits import NICENESS, QUICK_SECONDS
from tgi_core.grammar.value import Cost, Grammar, InvalidGrammar

_log = logging.getLogger(__name__)

_RENEWAL_SECONDS = 0.02
"""What compiling again may take: it happens in a step."""


class CompiledGrammar:
    """A grammar that compiled. Its matchers share one lexer, whose states add up over all of them and have a limit."""

    def __init__(self, vocabulary: LLTokenizer, source: str, seconds: float = 0.0) -> None:
        self._vocabulary, self._source, self._seconds = vocabulary, source, seconds
        self._first = self._start()

    def matcher(self) -> tuple[LLMatcher, LLMatcher]:
        """(what stands for its lexer, a matcher at the start of an answer); takes microseconds."""
        first = self._first
        return first, first.deep_copy()

    def renew(self, lexer: LLMatcher) -> None:
        """Compile again, unless `lexer` is no longer in use: matchers to come share nothing with those before. Raises InvalidGrammar,
        also where a step should not wait for it."""
        if self._first is lexer:
            if self._seconds > _RENEWAL_SECONDS:
                raise InvalidGrammar("it is too complex to go on with")
            self._first = self._start()

    def _start(self) -> LLMatcher:
        first = matching.start(self._vocabulary, self._source)
        if first.is_error():
            raise InvalidGrammar(matching.readable(first.get_error()))
        return first


KeptGrammar = Entry[CompiledGrammar]


class GrammarCompiler:
    """Compiles grammars and keeps the last ones, within a number of bytes. Thread-safe; what waits is never called on an event loop.

    Those that are prepared are compiled in threads that give way to everything else; quick ones do not wait for slow ones. What comes
    unprepared, as from TGI's routers, is tried in a worker process first: an endless grammar would hang the device's process.
    """

    def __init__(self, vocabulary: LLTokenizer, small_bytes: int = SMALL_BYTES, large_bytes: int = LARGE_BYTES) -> None:
        self._vocabulary = vocabulary
        self._kept: CompiledCache[CompiledGrammar] = CompiledCache(small_bytes, large_bytes)
        self._lock = threading.Lock()
        self._quick, self._slow = (ThreadPoolExecutor(1, f"grammar-{name}", initializer=_give_way) for name in ("quick", "slow"))
        self._judge = JudgeThread()

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
        """Number of grammars that are kept."""
        return len(self._kept)

    @property
    def cached_bytes(self) -> int:
        """Bytes that they take, by what their trials told and by the tokens that were made since."""
        return self._kept.size

    @classmethod
    def for_model(cls, directory: Path, eos_ids: frozenset[int]) -> GrammarCompiler | None:
        """A compiler for the tokenizer.json of a model directory; None, with a warning, when its tokenizer cannot have grammars."""
        try:
            text = (directory / "tokenizer.json").read_text(encoding="utf-8")
            return cls(matching.vocabulary_of(text, eos_ids))
        except (OSError, ValueError) as error:
            _log.warning("grammars are not supported with this model: %s", error)
            return None

    def prepare(self, grammar: Grammar, cost: Cost) -> Future[CompiledGrammar]:
        """Compile a grammar that was tried elsewhere, and keep it until `release`; does not wait. Raises GrammarsBusy, the future
        InvalidGrammar, after which there is nothing to release."""
        entry, new = self._entry(grammar, cost)
        if new:
            lane = self._quick if cost.seconds <= QUICK_SECONDS else self._slow
            lane.submit(self._make, entry, grammar, cost)
        return entry.made

    def release(self, grammar: Grammar) -> None:
        """What was prepared is not needed any more."""
        with self._lock:
            entry = self._kept.find(grammar.digest)
            if entry is not None:
                self._kept.release(entry)
                if entry.holds > 0:
                    self._kept.release(entry)

    def take(self, grammar: Grammar) -> KeptGrammar:
        """A compiled grammar, to be given back: at once when it was prepared, else once it has been tried and compiled. Raises
        InvalidGrammar, GrammarsBusy."""
        with self._lock:
            entry = self._kept.find(grammar.digest)
        if entry is None:
            cost = self._judge.cost(grammar)
            entry, new = self._entry(grammar, cost)
            if new:
                self._make(entry, grammar, cost)
        entry.made.result()
        return entry

    def give_back(self, entry: KeptGrammar, tokens: int = 0) -> None:
        """It is not needed any more by one who has made so many tokens with it."""
        with self._lock:
            self._kept.release(entry, tokens)

    def close(self) -> None:
        """End the threads and the worker processes. Idempotent."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._judge.close()

    def _entry(self, grammar: Grammar, cost: Cost) -> tuple[KeptGrammar, bool]:
        """What is kept of it, held; and whether it must still be made. Raises GrammarsBusy."""
        digest = grammar.digest
        with self._lock:
            entry = self._kept.find(digest)
            return (entry, False) if entry is not None else (self._kept.admit(digest, cost.bytes), True)

    def _make(self, entry: KeptGrammar, grammar: Grammar, cost: Cost) -> None:
        try:
            compiled = CompiledGrammar(self._vocabulary, matching.engine_source(grammar), cost.seconds)
        except BaseException as error:  # noqa: BLE001  it is raised where the grammar is wanted
            with self._lock:
                self._kept.drop(entry)
            entry.made.set_exception(error)
        else:
            entry.made.set_result(compiled)


def _give_way() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
