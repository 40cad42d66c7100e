"""What became of the most recent grammars, good or bad, so that none is worked on twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from tgi_core.grammar.value import Grammar, InvalidGrammar

CAPACITY = 64
"""Grammars remembered; TGI keeps 32."""

Made = TypeVar("Made")


class Outcomes(Generic[Made]):
    """Remembers what `make` has made of grammars, or why it could not. Thread-safe; one grammar is worked on at a time."""

    def __init__(self, make: Callable[[Grammar], Made], capacity: int = CAPACITY) -> None:
        self._make = make
        self._capacity = capacity
        self._known: OrderedDict[bytes, Made | InvalidGrammar] = OrderedDict()
        self._making = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, grammar: Grammar) -> Made:
        """What was made of this grammar, now or before. Raises InvalidGrammar."""
        digest = grammar.digest
        outcome = self._recall(digest)
        if outcome is None:
            with self._making:
                outcome = self._recall(digest) or self._work(grammar, digest)
        if isinstance(outcome, InvalidGrammar):
            raise InvalidGrammar(outcome.detail)
        return outcome

    def _work(self, grammar: Grammar, digest: bytes) -> Made | InvalidGrammar:
        outcome: Made | InvalidGrammar
        try:
            outcome = self._make(grammar)
        except InvalidGrammar as error:
            outcome = InvalidGrammar(error.detail)  # without the traceback, which holds what it was made of
        self._known[digest] = outcome
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return outcome

    def _recall(self, digest: bytes) -> Made | InvalidGrammar | None:
        outcome = self._known.get(digest)
        if outcome is not None:
            try:
                self._known.move_to_end(digest)
            except KeyError:  # another thread has just dropped it
                return None
        return outcome
