"""A supervised shard, which is restarted when it is lost: its process crashed, its device failed, or it hangs.

The first restart is immediate, further ones follow after 1, 2, 4 … 30 seconds. After too many restarts without a generated token
in between, the shard is lost for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from tgi_core.backend import BackendError, CacheKind, Capabilities, Capacity, DeviceLost, Feature, Progress, WarmupPlan
from tgi_core.client.base import Plan, ReadyShard, Replaced, ShardGone, TakenOver
from tgi_core.client.grammars import Release
from tgi_core.client.result_validator import ResultValidator
from tgi_core.client.watchdog import AdaptiveTimeout, Watchdog
from tgi_core.errors import StartupError
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.wire.types import ShardInfo, Turn, TurnResult

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 30.0
_CLOSE_S = 10.0
"""Maximum seconds for closing a shard."""


@dataclass(frozen=True, slots=True)
class RestartRules:
    """`continues`: requests continue on the next shard. `budget`: maximum consecutive restarts without a token, while `spared` is false.
    `watchdog_floor`: seconds that any step may take."""

    continues: bool = True
    budget: int = 5
    watchdog_floor: float = 60.0
    spared: Callable[[], bool] = lambda: False


def pause(restart: int) -> float:
    """Return the seconds to wait before a restart; `restart` counts consecutive restarts from 1."""
    return 0.0 if restart <= 1 else min(_LONGEST_PAUSE_S, 2.0 ** (restart - 2))


def as_promised(capacity: Capacity, plan: Plan) -> Plan:
    """Return a plan that requests the capacity of an earlier shard."""
    first = capacity.groups[0]
    windows = [group.num_blocks for group in capacity.groups if group.kind is CacheKind.WINDOW]

    def asked(capabilities: Capabilities) -> WarmupPlan:
        return replace(
            plan(capabilities),
            max_rows=capacity.max_rows,
            max_row_tokens=capacity.max_row_tokens,
            max_step_tokens=capacity.max_step_tokens,
            num_blocks=first.num_blocks,
            block_size=first.block_size,
            window_blocks=min(windows, default=0),
        )

    return asked


def _without_reasons(capabilities: Capabilities) -> Capabilities:
    """Drop why each kernel was selected: the first start on a machine measures what later ones look up."""
    return replace(capabilities, kernels=tuple(replace(kernel, reason="") for kernel in capabilities.kernels))


def shortfall(new: ReadyShard, old: ReadyShard) -> str:
    """Describe what `new` lacks compared with `old`; "" if nothing."""
    if _without_reasons(new.info.capabilities) != _without_reasons(old.info.capabilities):
        return "other capabilities"
    kinds = [[(group.kind, group.block_size, group.window) for group in one.capacity.groups] for one in (new, old)]
    if kinds[0] != kinds[1]:
        return "another kind of cache"
    if any(mine.num_blocks < theirs.num_blocks for mine, theirs in zip(new.capacity.groups, old.capacity.groups, strict=True)):
        return "fewer blocks of cache"
    for name in ("max_rows", "max_row_tokens", "max_step_tokens", "max_prefill_rows", "in_flight"):
        mine, theirs = getattr(new.capacity, name), getattr(old.capacity, name)
        if mine < theirs:
            return f"{name} {mine} instead of {theirs}"
    return "another draft" if new.capacity.draft != old.capacity.draft else ""


def _validator(opened: ReadyShard) -> ResultValidator:
    """The check of a shard's answers. A shard that does not take drafts from the scheduler may have its own."""
    return ResultValidator(0 if Feature.SPECULATION in opened.info.capabilities.features else opened.capacity.draft)


class SupervisedShard:
    """A client of the current shard, and its supervisor. `reopen` opens the next shard. Bound to one event loop."""

    def __init__(self, opened: ReadyShard, reopen: Callable[[], Awaitable[ReadyShard]], rules: RestartRules) -> None:
        self._promised = opened
        self._reopen = reopen
        self._rules = rules
        self._restarts = 0
        self._hang: str | None = None
        self._ended: Callable[[BackendError], None] = lambda error: None
        self._watchdog = Watchdog(AdaptiveTimeout(rules.watchdog_floor), self._hangs)
        self._opened: ReadyShard | None = opened
        """The shard in use; None while it is being replaced."""
        self._last = opened
        """The shard opened last, which must still be closed after its loss."""
        self._validator = _validator(opened)
        self._watching = asyncio.create_task(self._watch(opened))
        self._ticking = asyncio.create_task(self._watchdog.run())

    @property
    def continues(self) -> bool:
        """Whether requests of a lost shard continue on its replacement."""
        return self._rules.continues

    def watch(self, ended: Callable[[BackendError], None]) -> None:
        """Call `ended` if the shard ends while no turn is in progress."""
        self._ended = ended

    async def info(self) -> ShardInfo:
        """Return the description of the first shard, which every later one must match."""
        return self._promised.info

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Return the guaranteed capacity; the shard is warm already."""
        return self._promised.capacity

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile a grammar on the current shard; the next shard starts without it. Raises InvalidGrammar, GrammarsBusy,
        BackendError."""
        if self._opened is None:
            raise DeviceLost("there is no shard at present")
        return await self._opened.shard.prepare(grammar, cost)

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Have the current shard tokenize a prompt with images. Raises ImageRejected, MediaBusy, BackendError."""
        if self._opened is None:
            raise DeviceLost("there is no shard at present")
        return await self._opened.shard.tokenize_images(prompt)

    async def exchange(self, turn: Turn) -> TurnResult:
        """Execute one turn. Raises DeviceLost if the shard is lost, BackendBug if its answer is invalid; `restart` opens the next
        shard."""
        if self._opened is None:
            raise DeviceLost("there is no shard at present")
        self._watchdog.begin(turn)
        try:
            result = await self._opened.shard.exchange(turn)
        except DeviceLost as error:
            if self._hang is not None:
                raise DeviceLost(self._hang) from error
            raise
        self._validator.check(turn, result)
        self._watchdog.end()
        if self._restarts and result.result is not None and any(made.tokens for made in result.result.generations):
            self._restarts, self._watchdog.factor = 0, 1
        return result

    async def healthy(self) -> bool:
        """Return whether there is a shard and it responds."""
        return self._opened is not None and await self._opened.shard.healthy()

    async def ended(self) -> str:
        """Wait forever: a lost shard is replaced."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def abandon(self) -> None:
        """Abandon the current shard."""
        await self._last.shard.abandon()

    async def close(self) -> None:
        """Close the current shard; fast after `abandon`. Idempotent."""
        self._ticking.cancel()
        self._watching.cancel()
        try:
            async with asyncio.timeout(2 * _CLOSE_S):
                await self._last.shard.close()
        except (BackendError, TimeoutError) as error:
            _log.error("the shard did not close: %s", error or "it hangs")

    def restart(self, error: BackendError) -> Coroutine[Any, Any, None]:
        """Replace the lost shard, which reports nothing more once this returns. The coroutine does the rest, and raises
        ShardGone."""
        if self._detach() is not None:
            self._watchdog.factor *= 2
        return self._restart(error)

    async def _restart(self, error: BackendError) -> None:
        if isinstance(error, Replaced):
            self._restarts = 0
            with contextlib.suppress(BackendError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._last.shard.close()
        await self._last.shard.abandon()
        if isinstance(error, TakenOver):
            raise ShardGone(str(error)) from error
        if not isinstance(error, Replaced):
            self._count(str(error))
        await self._close_last()
        while True:
            await asyncio.sleep(pause(self._restarts))
            try:
                self._attach(await self._another())
            except (StartupError, OSError) as failed:  # OSError: temporarily out of processes or file descriptors
                _log.error("the restart failed: %s", failed)
                self._count(str(failed))
            else:
                return

    def _count(self, reason: str) -> None:
        """Count a restart. Raises ShardGone after too many."""
        if self._restarts >= self._rules.budget and not self._rules.spared():
            raise ShardGone(f"{reason}; {self._rules.budget} restarts in a row brought no token")
        self._restarts += 1
        _log.warning("restart %d of %d, in %.0f s", self._restarts, self._rules.budget, pause(self._restarts))

    async def _another(self) -> ReadyShard:
        """Open the next shard. Raises StartupError, also if its capacity is smaller."""
        opened = await self._reopen()
        lacks = shortfall(opened, self._promised)
        if lacks:
            await opened.shard.close()
            raise StartupError(f"the restarted shard has {lacks}, so that what was accepted may not fit")
        return opened

    async def _close_last(self) -> None:
        """Close the lost shard. A child process has ended; a shard in this process must free its memory first. Raises ShardGone."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._last.shard.close()
        except (BackendError, TimeoutError) as error:
            why = "it hangs" if isinstance(error, TimeoutError) else str(error)
            raise ShardGone(f"the lost shard does not close: {why}; only a restart of the server helps") from error

    async def _hangs(self, text: str) -> None:
        _log.error("%s; it is ended", text)
        self._hang = text
        await self.abandon()

    async def _watch(self, opened: ReadyShard) -> None:
        reason = await opened.shard.ended()
        if self._opened is opened:
            self._ended(DeviceLost(self._hang or reason))

    def _attach(self, opened: ReadyShard) -> None:
        self._opened = self._last = opened
        self._validator = _validator(opened)
        self._watching = asyncio.create_task(self._watch(opened))

    def _detach(self) -> str | None:
        """Stop using the shard. Return the watchdog's alarm, if there was one."""
        self._opened = None
        hang, self._hang = self._hang, None
        self._watching.cancel()
        self._watchdog.forget()
        return hang
