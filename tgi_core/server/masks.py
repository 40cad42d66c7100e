"""Masks: the tokens that each constrained row may sample next, by its grammar or by its minimum of tokens.

Grammars are normally prepared before their requests arrive. A TGI router does not prepare grammars, so those are compiled during
the forward pass of the prompt; so are grammars of requests that move here from a lost shard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tgi_core.backend import MaskRow
from tgi_core.grammar import Cost, Grammar, GrammarError, InvalidGrammar
from tgi_core.grammar.compiler import CompiledGrammar, GrammarCompiler, KeptGrammar
from tgi_core.grammar.limits import MAX_BYTES
from tgi_core.grammar.matching import readable

_log = logging.getLogger(__name__)

_RENEWAL_TOKENS = 64
"""Number of tokens that a row must generate before its lexer may be renewed again."""


class Constraint:
    """One request's position in its grammar. Thread-safe: with speculation, tokens are consumed as soon as they are read, while a
    backend may ask for masks."""

    def __init__(self, compiled: CompiledGrammar, made: Sequence[int]) -> None:
        self._compiled = compiled
        self._made: list[int] = []
        """Tokens that the matcher has consumed."""
        self._masked = len(made)
        """Number of tokens that `mask` has got."""
        self._renewed_at: int | None = None
        self._lock = threading.Lock()
        self._lexer, self._matcher = compiled.matcher()
        self._mask: bytes | None = self._advance(made)
        """The mask after the tokens in `_made`; None if it has not been computed."""
        self._forced: list[int] = []
        """Tokens that must follow the first `_forced_from`, as far as they are known. A long text is split into tokens only once."""
        self._forced_from = len(made)

    @property
    def tokens(self) -> int:
        """Number of tokens that the matcher has consumed."""
        return len(self._made)

    def mask(self, tokens: Sequence[int]) -> bytes:
        """Return the mask after these tokens: one bit per token of the vocabulary; once the grammar is complete, only
        end-of-sequence tokens.

        Raises InvalidGrammar when the tokens break the grammar, or it grows beyond its limits.
        """
        with self._lock:
            new = tokens[max(0, len(self._made) - self._masked) :]
            self._masked += len(tokens)
            if self._mask is not None and self._matcher.is_stopped() and not self._matcher.is_error():
                self._check_end(self._mask, new)
            elif new or self._mask is None:
                self._mask = self._advance(new)
            return self._mask

    def forced(self, made: Sequence[int]) -> list[int]:
        """Consume what is new in `made`, all tokens of the answer so far, and return those that must follow, in the spelling of the
        tokenizer. An error is left to `mask`."""
        with self._lock:
            new = list(made[len(self._made) :])
            if new and not self._matcher.is_stopped():
                self._made += new
                self._mask = None
                self._matcher.consume_tokens(new)
            since = list(made[self._forced_from :])
            self._forced_from = len(made)
            self._forced = self._forced[len(since) :] if self._forced[: len(since)] == since else []
            if not self._forced and not self._matcher.is_stopped():
                self._forced = self._matcher.compute_ff_tokens()
            return self._forced

    def allowed(self, drafts: Sequence[int]) -> int:
        """Return how many of these tokens may follow, one after the other."""
        with self._lock:
            return 0 if self._matcher.is_stopped() else self._matcher.validate_tokens(list(drafts))

    def _advance(self, tokens: Sequence[int]) -> bytes:
        self._made += tokens
        mask = self._consume(tokens)
        if self._matcher.is_error() and self._may_renew():
            # all rows of a grammar share a lexer: a row must not fail because others have exhausted its limits
            self._renewed_at = len(self._made)
            self._compiled.renew(self._lexer)
            self._lexer, self._matcher = self._compiled.matcher()
            mask = self._consume(self._made)
        if self._matcher.is_error():  # the mask of a failed matcher would end the text as if it were complete
            raise InvalidGrammar(readable(self._matcher.get_error()))
        return mask

    @staticmethod
    def _check_end(mask: bytes, tokens: Sequence[int]) -> None:
        """Check tokens after the end of the grammar: a backend that runs ahead requests masks beyond the end of the text."""
        allowed = int.from_bytes(mask, "little")
        if not all(allowed >> token & 1 for token in tokens):
            raise InvalidGrammar("tokens follow its end")

    def _consume(self, tokens: Sequence[int]) -> bytes:
        self._matcher.consume_tokens(list(tokens))
        return self._matcher.compute_bitmask()

    def _may_renew(self) -> bool:
        return self._renewed_at is None or len(self._made) >= self._renewed_at + _RENEWAL_TOKENS


class Minimum:
    """Keeps one request's text from ending before it has enough tokens: until then, tokens that end it are masked."""

    def __init__(self, tokens: int, without_endings: bytes, everything: bytes) -> None:
        self._left = tokens
        self._without_endings = without_endings
        self._everything = everything

    def mask(self, tokens: Sequence[int]) -> bytes:
        """Return the mask after these tokens."""
        self._left -= len(tokens)
        return self._without_endings if self._left > 0 else self._everything


class _ActiveConstraint(NamedTuple):
    """Constraint of a live request, with the compiled grammar that it holds."""

    constraint: Constraint
    kept: KeptGrammar


class GrammarMasks:
    """Mask source of a shard: one constraint per live constrained request. Thread-safe."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.compiler = compiler
        self._live: dict[int, Future[_ActiveConstraint]] = {}
        self._minima: dict[int, Minimum] = {}
        self._failures: dict[int, str] = {}
        self._lock = threading.Lock()
        self._beginning = ThreadPoolExecutor(2, thread_name_prefix="grammar-begin")
        self._vocab_size = 0
        self._ending = b""

    @classmethod
    def for_model(cls, directory: Path, eos_ids: frozenset[int], max_bytes: int = MAX_BYTES) -> GrammarMasks | None:
        """Create masks for the model in a directory; None, with a warning, if its tokenizer does not support grammars. Takes up to
        1 s."""
        compiler = GrammarCompiler.for_model(directory, eos_ids, max_bytes)
        return None if compiler is None else cls(compiler)

    def attach(self, vocab_size: int) -> None:
        """Set the vocabulary size of the model, which may differ from the tokenizer's."""
        self._vocab_size = vocab_size
        ending = sum(1 << id for id in set(self.compiler.eos_ids))
        self._ending = self._fit(ending.to_bytes(self.compiler.vocab_size // 8 + 1, "little"))

    def prepare(self, grammar: Grammar, cost: Cost) -> Future[CompiledGrammar]:
        """See `GrammarCompiler.prepare`."""
        return self.compiler.prepare(grammar, cost)

    def release(self, grammar: Grammar) -> None:
        """Undo one `prepare`."""
        self.compiler.release(grammar)

    def begin(self, request_id: int, grammar: Grammar, made: Sequence[int]) -> None:
        """Start the grammar of a request that has already generated `made`. Returns at once; errors surface in its masks."""
        with self._lock:
            self._live[request_id] = self._beginning.submit(self._begin, grammar, tuple(made))

    def begin_minimum(self, request_id: int, tokens: int, ending: Iterable[int]) -> None:
        """Mask end-of-sequence tokens and those of `ending` for the next `tokens` tokens of a request that has no grammar."""
        banned = sum(1 << id for id in {*self.compiler.eos_ids, *ending})
        everything = (1 << self._vocab_size) - 1
        masks = (each.to_bytes(self._width, "little") for each in (everything & ~banned, everything))
        with self._lock:
            self._minima[request_id] = Minimum(tokens, *masks)

    def end(self, request_ids: Iterable[int]) -> None:
        """Forget requests, constrained or not."""
        with self._lock:
            ended = []
            for id in request_ids:
                self._failures.pop(id, None)
                self._minima.pop(id, None)
                if (begun := self._live.pop(id, None)) is not None:
                    ended.append(begun)
        for begun in ended:
            begun.add_done_callback(self._give_back)

    def failure(self, request_id: int) -> str | None:
        """Return why the mask of a live request allows no token; None if it does allow some."""
        return self._failures.get(request_id)

    @property
    def live(self) -> frozenset[int]:
        """Ids of constrained requests that have begun and not ended, and of those with a failure."""
        with self._lock:
            return frozenset(self._live) | frozenset(self._minima) | frozenset(self._failures)

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """See `tgi_core.backend.MaskSource`. Waits for grammars that are still being compiled."""
        return b"".join(self._mask(row) for row in rows)

    def forced(self, request_id: int, made: Sequence[int], most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that must follow by the grammar of a request that has `made` so far, as far as the model has
        them."""
        constraint = self._begun(request_id)
        if constraint is None:
            return ()
        return tuple(takewhile(lambda token: token < self._vocab_size, constraint.forced(made)[:most]))

    def allowed(self, request_id: int, drafts: Sequence[int]) -> int:
        """Return how many drafts, one after the other, the grammar of a request allows: all if it has none."""
        constraint = self._begun(request_id)
        return len(drafts) if constraint is None else constraint.allowed(drafts)

    def close(self) -> None:
        """Forget all requests and stop the threads. Idempotent."""
        self.end([*self._live, *self._minima])
        self._beginning.shutdown(wait=False, cancel_futures=True)
        self.compiler.close()

    def _begin(self, grammar: Grammar, made: tuple[int, ...]) -> _ActiveConstraint:
        kept = self.compiler.take(grammar)
        try:
            return _ActiveConstraint(Constraint(kept.made.result(), made), kept)
        except BaseException:
            self.compiler.give_back(kept)
            raise

    def _begun(self, request_id: int) -> Constraint | None:
        """Return the constraint of a live request that has not failed; None while its grammar is being compiled."""
        begun = self._live.get(request_id)
        if begun is None or request_id in self._failures or not begun.done() or begun.exception() is not None:
            return None
        return begun.result().constraint

    def _give_back(self, begun: Future[_ActiveConstraint]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            constraint, kept = begun.result()
            self.compiler.give_back(kept, constraint.tokens)

    def _mask(self, row: MaskRow) -> bytes:
        minimum = self._minima.get(row.request_id)
        if minimum is not None:
            return minimum.mask(row.tokens)
        begun = self._live.get(row.request_id)
        if begun is None:  # a late row of a request that was dropped
            return self._ending
        try:
            if row.request_id not in self._failures:
                return self._fit(begun.result().constraint.mask(row.tokens))
        except GrammarError as error:
            self._fail(row.request_id, str(error))
        except Exception as error:  # noqa: BLE001  one row's mask is its own
            _log.exception("request %d: its mask failed", row.request_id)
            self._fail(row.request_id, f"{type(error).__name__} in its grammar")
        return bytes(self._width)

    def _fail(self, request_id: int, text: str) -> None:
        with self._lock:
            if request_id in self._live:
                self._failures[request_id] = text

    @property
    def _width(self) -> int:
        """Size of one row's mask, in bytes."""
        return -(-self._vocab_size // 32) * 4

    def _fit(self, bits: bytes) -> bytes:
        """Convert a mask over the tokenizer's tokens to one over the model's."""
        if self.compiler.vocab_size > self._vocab_size:
            kept = int.from_bytes(bits, "little") & ((1 << self._vocab_size) - 1)
            return kept.to_bytes(self._width, "little")
        return bits[: self._width].ljust(self._width, b"\0")
