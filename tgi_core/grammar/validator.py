"""Validation and cost measurement of grammars, and checks of responses, in worker processes that can be killed.

An unknown grammar goes to a quick worker with a small time limit. The few that need more time wait for a separate slow worker, so
that they do not delay other requests. Results are remembered, and known grammars do not wait.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from pathlib import Path

from tgi_core.grammar.limits import MAX_BYTES, MAX_SECONDS, QUICK_SECONDS
from tgi_core.grammar.value import Cost, Grammar, GrammarReport, GrammarsBusy, InvalidGrammar
from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerLost, WorkerPool

REMEMBERED = 4096
"""Number of verdicts remembered; each takes at most a kilobyte."""

_WORKER = Path(__file__).with_name("validation_worker.py")
_QUICK_WORKERS = 2
_QUICK_WAITING, _SLOW_WAITING = 64, 4
"""Maximum number of grammars waiting for a worker."""
_CHECKS_WAITING = 256
"""Maximum number of responses waiting for their check, which takes a millisecond."""
_WAIT_S = 10.0
_TOO_COMPLEX = "it is too complex"

Verdict = GrammarReport | str
"""What is known about a valid grammar, or what is wrong with an invalid one."""


class GrammarValidator:
    """Tries grammars, only in worker processes, and remembers the results. Not thread-safe: use it from one event loop."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._quick = _lane(QUICK_SECONDS, max_bytes, _QUICK_WORKERS, _QUICK_WAITING)
        self._slow = _lane(MAX_SECONDS, max_bytes, 1, _SLOW_WAITING)
        self._checks = _lane(MAX_SECONDS, max_bytes, 1, _CHECKS_WAITING)
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._trying: dict[bytes, asyncio.Task[Verdict]] = {}

    async def cost(self, grammar: Grammar) -> Cost:
        """Return the cost of a grammar, immediately if known. Raises InvalidGrammar, GrammarsBusy."""
        return (await self.validate(grammar)).cost

    async def violation(self, grammar: Grammar, text: str) -> str:
        """Return how a complete response violates its schema, "" if it is valid. Raises GrammarsBusy."""
        try:
            found: str = json.loads(await self._checks.ask(json.dumps({"violation": [grammar.source, text]}).encode()))
        except (TooCostly, WorkerCrashed):
            return "its schema takes too long to check"
        except (PoolBusy, WorkerLost):
            raise GrammarsBusy from None
        return found

    async def validate(self, grammar: Grammar) -> GrammarReport:
        """Return what is known about a grammar, immediately if it was tried before. Raises InvalidGrammar, GrammarsBusy."""
        digest = grammar.digest
        verdict = self._known.get(digest)
        if verdict is None:
            verdict = await self._tried(grammar, digest)
        else:
            self._known.move_to_end(digest)
        if isinstance(verdict, str):
            raise InvalidGrammar(verdict)
        return verdict

    async def close(self) -> None:
        """Stop the workers and wait until pending trials have failed."""
        self._quick.close()
        self._slow.close()
        self._checks.close()
        await asyncio.gather(*self._trying.values(), return_exceptions=True)

    async def _tried(self, grammar: Grammar, digest: bytes) -> Verdict:
        """Try a grammar. Concurrent requests for the same grammar share one trial, which continues if they are cancelled."""
        trying = self._trying.get(digest)
        if trying is None:
            trying = self._trying[digest] = asyncio.create_task(self._try(grammar, digest))
            trying.add_done_callback(lambda done: self._done(done, digest))
        return await asyncio.shield(trying)

    async def _try(self, grammar: Grammar, digest: bytes) -> Verdict:
        request = json.dumps([grammar.kind.value, grammar.source]).encode()
        try:
            verdict = await self._verdict(request)
        except WorkerCrashed:  # not remembered, since the cause may be another one
            raise InvalidGrammar(_TOO_COMPLEX) from None
        except (PoolBusy, WorkerLost):
            raise GrammarsBusy from None
        self._known[digest] = verdict
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    async def _verdict(self, request: bytes) -> Verdict:
        """Ask the quick worker, then the slow one. Raises WorkerError."""
        try:
            answer = await self._quick.ask(request)
        except TooCostly:
            try:
                answer = await self._slow.ask(request)
            except TooCostly:
                return _TOO_COMPLEX
        fault, size, seconds, checked, formats = json.loads(answer)
        return fault or GrammarReport(Cost(size, seconds), tuple(checked), tuple(formats))

    def _done(self, trying: asyncio.Task[Verdict], digest: bytes) -> None:
        del self._trying[digest]
        if not trying.cancelled():
            trying.exception()  # the callers may be gone


class GrammarValidatorThread:
    """A judge in a thread with its own event loop, for callers without one. Thread-safe; the thread starts on first use."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._validator = GrammarValidator(max_bytes)
        self._starting = threading.Lock()

    def cost(self, grammar: Grammar) -> Cost:
        """Return the cost of a grammar. Blocks. Raises InvalidGrammar, GrammarsBusy."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="grammar-judge", daemon=True)
                self._thread.start()
            asking = asyncio.run_coroutine_threadsafe(self._validator.cost(grammar), self._loop)
        return asking.result()

    def close(self) -> None:
        """Stop the workers; pending calls raise GrammarsBusy. Idempotent."""
        with self._starting:
            if self._loop is None:
                return
            loop, self._loop = self._loop, None
            asyncio.run_coroutine_threadsafe(self._validator.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()


def _lane(seconds: float, max_bytes: int, size: int, waiting: int) -> WorkerPool:
    return WorkerPool(python(_WORKER), [str(seconds), str(max_bytes)], size=size, waiting=waiting, wait_s=_WAIT_S)
