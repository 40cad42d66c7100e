"""Grammars that a shard compiles ahead of the requests that need them, and keeps until those have ended."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tgi_core.backend import BackendError
from tgi_core.grammar import Cost, Grammar, GrammarError, GrammarsBusy
from tgi_core.grammar.limits import QUICK_SECONDS
from tgi_core.workers.semaphore import LimitedSemaphore

Release = Callable[[], None]
"""Releases a grammar once, without waiting."""

_QUICK, _QUICK_WAITING = 4, 64
_SLOW, _SLOW_WAITING = 1, 4
"""Maximum number of concurrent compilations: a shard has few threads for calls."""
_MOST_KNOWN = 1024
"""Maximum number of compiled grammars that the router remembers."""
_WAIT_S = 10.0
_LONGEST_S = 30.0
"""Maximum seconds for a compilation: a shard that does not respond must not block requests forever."""


def nothing() -> None:
    """Release nothing."""


@dataclass(slots=True, eq=False)
class _HeldGrammar:
    grammar: Grammar
    making: asyncio.Task[None]
    users: int = 0


class HeldGrammars:
    """The grammars that one shard keeps for this router. `prepare` compiles and keeps a grammar, `drop` undoes that, even
    while it compiles. Used on one event loop."""

    def __init__(self, prepare: Callable[[Grammar, Cost], Awaitable[None]], drop: Callable[[Grammar], Awaitable[None]]) -> None:
        self._prepare, self._drop = prepare, drop
        self._held: dict[bytes, _HeldGrammar] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._quick, self._slow = (
            LimitedSemaphore(_QUICK, _QUICK_WAITING, _WAIT_S),
            LimitedSemaphore(_SLOW, _SLOW_WAITING, _WAIT_S),
        )
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Digests of grammars that the shard has compiled and probably still has, least recently used first."""
        self._again = LimitedSemaphore(_QUICK, _QUICK_WAITING, _WAIT_S)
        """For known grammars, which new ones must not hold up."""

    async def hold(self, grammar: Grammar, cost: Cost) -> Release:
        """Wait until the shard has compiled a grammar; returns at once for one in use. Raises InvalidGrammar, GrammarsBusy,
        BackendError."""
        digest = grammar.digest
        held = self._held.get(digest)
        if held is None:
            held = self._held[digest] = _HeldGrammar(grammar, asyncio.create_task(self._make(grammar, cost)))
        held.users += 1
        release = _once(partial(self._leave, digest, held))
        try:
            await asyncio.shield(held.making)
        except BaseException:
            release()
            raise
        return release

    async def _make(self, grammar: Grammar, cost: Cost) -> None:
        lane = self._lane(grammar.digest, cost)
        if not await lane.acquire():
            raise GrammarsBusy
        try:
            async with asyncio.timeout(_LONGEST_S):
                await self._prepare(grammar, cost)
        except TimeoutError:
            self._drop_soon(grammar)  # which the shard may keep without knowing that nobody waits for it
            raise GrammarsBusy from None
        finally:
            lane.release()
        self._known[grammar.digest] = None
        self._known.move_to_end(grammar.digest)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _lane(self, digest: bytes, cost: Cost) -> LimitedSemaphore:
        if cost.seconds > QUICK_SECONDS:
            return self._slow
        return self._again if digest in self._known else self._quick

    def _leave(self, digest: bytes, held: _HeldGrammar) -> None:
        held.users -= 1
        if held.users == 0:
            del self._held[digest]
            held.making.add_done_callback(lambda made: self._forget(made, held.grammar))

    def _forget(self, made: asyncio.Task[None], grammar: Grammar) -> None:
        if made.cancelled() or made.exception() is not None or made.get_loop().is_closed():
            return
        self._drop_soon(grammar)

    def _drop_soon(self, grammar: Grammar) -> None:
        dropping = asyncio.create_task(self._dropped(grammar))
        self._dropping.add(dropping)
        dropping.add_done_callback(self._dropping.discard)

    async def _dropped(self, grammar: Grammar) -> None:
        try:
            await self._drop(grammar)
        except (BackendError, GrammarError):  # a lost shard keeps nothing
            return


def _once(release: Release) -> Release:
    left = [release]
    return lambda: left.pop()() if left else None
