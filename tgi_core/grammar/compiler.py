"""Compilation of grammars for one vocabulary, in background threads, with a cache."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from tgi_core.grammar import matching
from tgi_core.grammar.cache import LARGE_BYTES, SMALL_BYTES, CompiledCache, Entry
from tgi_core.grammar.limits import MAX_BYTES, QUICK_SECONDS
from tgi_core.grammar.validator import GrammarValidatorThread
from tgi_core.grammar.value import Cost, Grammar, InvalidGrammar
from tgi_core.workers.priority import thread_gives_way

_log = logging.getLogger(__name__)

_RENEWAL_SECONDS = 0.02
"""Maximum compile time for a recompilation, which happens during a step."""


class CompiledGrammar:
    """A compiled grammar. Its matchers share one lexer, which accumulates states from all of them up to a limit."""

    def __init__(self, vocabulary: LLTokenizer, source: str, seconds: float = 0.0) -> None:
        self._vocabulary, self._source, self._seconds = vocabulary, source, seconds
        self._first = self._start()

    def matcher(self) -> tuple[LLMatcher, LLMatcher]:
        """Return the matcher that identifies the current lexer, and a new matcher. Takes microseconds."""
        first = self._first
        return first, first.deep_copy()

    def renew(self, lexer: LLMatcher) -> None:
        """Recompile if `lexer` is still current, so that later matchers get a new lexer. Raises InvalidGrammar, including when
        compiling takes too long for a step."""
        if self._first is lexer:
            if self._seconds > _RENEWAL_SECONDS:
                raise InvalidGrammar("it is too complex to continue")
            self._first = self._start()

    def _start(self) -> LLMatcher:
        first = matching.start(self._vocabulary, self._source)
        if first.is_error():
            raise InvalidGrammar(matching.readable(first.get_error()))
        return first


KeptGrammar = Entry[CompiledGrammar]


class GrammarCompiler:
    """Compiles and caches grammars. Thread-safe; do not call blocking methods on an event loop.

    Prepared grammars are compiled in low-priority threads; fast ones do not wait for slow ones. Unprepared grammars, for example
    from TGI's routers, are first tried in a worker process, because a grammar whose compilation never ends would hang the device's
    process.
    """

    def __init__(
        self, vocabulary: LLTokenizer, small_bytes: int = SMALL_BYTES, large_bytes: int = LARGE_BYTES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._vocabulary, self._max_bytes = vocabulary, max_bytes
        self._kept: CompiledCache[CompiledGrammar] = CompiledCache(small_bytes, large_bytes)
        self._lock = threading.Lock()
        self._quick, self._slow = (
            ThreadPoolExecutor(1, f"grammar-{name}", initializer=thread_gives_way) for name in ("quick", "slow")
        )
        self._validator = GrammarValidatorThread(max_bytes)

    @property
    def vocab_size(self) -> int:
        """Number of tokens covered by masks; masks may be longer."""
        return self._vocabulary.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """End-of-sequence token ids."""
        return tuple(self._vocabulary.eos_tokens)

    @property
    def cached(self) -> int:
        """Number of cached grammars."""
        return len(self._kept)

    @property
    def cached_bytes(self) -> int:
        """Estimated size of the cache in bytes, from the grammars' trials and the tokens generated since."""
        return self._kept.size

    @classmethod
    def for_model(cls, directory: Path, eos_ids: frozenset[int], max_bytes: int = MAX_BYTES) -> GrammarCompiler | None:
        """Create a compiler for a model directory; None, with a warning, if its tokenizer does not support grammars. `max_bytes`
        limits the texts of grammars."""
        try:
            text = (directory / "tokenizer.json").read_text(encoding="utf-8")
            return cls(matching.vocabulary_of(text, eos_ids), max_bytes=max_bytes)
        except (OSError, ValueError) as error:
            _log.warning("grammars are not supported with this model: %s", error)
            return None

    def prepare(self, grammar: Grammar, cost: Cost) -> Future[CompiledGrammar]:
        """Start compiling a grammar that has already been tried, and hold it until `release`. Does not block. Raises GrammarsBusy.
        If the future raises InvalidGrammar, there is nothing to release."""
        entry, new = self._entry(grammar, cost)
        if new:
            lane = self._quick if cost.seconds <= QUICK_SECONDS else self._slow
            lane.submit(self._make, entry, grammar, cost)
        return entry.made

    def release(self, grammar: Grammar) -> None:
        """Release a prepared grammar."""
        with self._lock:
            entry = self._kept.find(grammar.digest)
            if entry is not None:
                self._kept.release(entry)
                if entry.holds > 0:
                    self._kept.release(entry)

    def take(self, grammar: Grammar) -> KeptGrammar:
        """Return a compiled grammar, to be returned with `give_back`. Blocks while the grammar is compiled and, if unprepared,
        tried. Raises InvalidGrammar, GrammarsBusy."""
        with self._lock:
            entry = self._kept.find(grammar.digest)
        if entry is None:
            cost = self._validator.cost(grammar)
            entry, new = self._entry(grammar, cost)
            if new:
                self._make(entry, grammar, cost)
        entry.made.result()
        return entry

    def give_back(self, entry: KeptGrammar, tokens: int = 0) -> None:
        """Release a grammar from `take` after generating `tokens` tokens with it."""
        with self._lock:
            self._kept.release(entry, tokens)

    def close(self) -> None:
        """Stop the threads and worker processes. Idempotent."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._validator.close()

    def _entry(self, grammar: Grammar, cost: Cost) -> tuple[KeptGrammar, bool]:
        """Return a held entry and whether it is new and must be compiled. Raises GrammarsBusy."""
        digest = grammar.digest
        with self._lock:
            entry = self._kept.find(digest)
            return (entry, False) if entry is not None else (self._kept.admit(digest, cost.bytes), True)

    def _make(self, entry: KeptGrammar, grammar: Grammar, cost: Cost) -> None:
        try:
            compiled = CompiledGrammar(self._vocabulary, matching.translate(grammar, self._max_bytes).text, cost.seconds)
        except BaseException as error:  # noqa: BLE001  raised by the future
            with self._lock:
                self._kept.drop(entry)
            entry.made.set_exception(error)
        else:
            entry.made.set_result(compiled)
