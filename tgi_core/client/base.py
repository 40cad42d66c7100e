"""The interface between the scheduler and a shard."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from tgi_core.backend import BackendError, Capabilities, Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.wire.types import ShardInfo, Turn, TurnResult


class ShardClient(Protocol):
    """A model server, wherever it runs. Turns take effect in the order of the calls; only one may be in progress at a time."""

    async def info(self) -> ShardInfo:
        """What the shard has opened."""

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up and promise limits. Raises `tgi_core.backend.BackendError`."""

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile a grammar before a request that needs it is sent, and keep it until the release. Raises InvalidGrammar, GrammarsBusy,
        BackendError."""

    async def exchange(self, turn: Turn) -> TurnResult:
        """Send one turn and wait for its answer. Raises `tgi_core.backend.DeviceLost` when the shard is gone."""

    async def healthy(self) -> bool:
        """Whether the shard answers."""

    async def ended(self) -> str:
        """Wait until the shard ends by itself, which may be never; returns the reason."""

    async def abandon(self) -> None:
        """Give the shard up without waiting for it: a turn in progress raises DeviceLost, and a child process is killed."""

    async def close(self) -> None:
        """End the shard. Idempotent."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard that is ready for requests."""

    shard: ShardClient
    info: ShardInfo
    capacity: Capacity


Plan = Callable[[Capabilities], WarmupPlan]
"""Makes the warm-up plan of a shard from its capabilities."""


class Opener(Protocol):
    """Opens shards of one model in one way."""

    async def open(self, plan: Plan, progress: Progress) -> Opened:
        """A shard that is warm. Raises StartupError."""


class TakenOver(DeviceLost):
    """Another router has taken the shard over. Taking it back would start an endless fight."""


class ShardGone(Exception):
    """There is no shard, and there will be none. The message says why."""


class Supervisor(Protocol):
    """Replaces the shard behind a client."""

    @property
    def continues(self) -> bool:
        """Whether requests of a lost shard continue on the next one."""

    def watch(self, ended: Callable[[BackendError], None]) -> None:
        """Call `ended` when the shard ends while no turn is in progress."""

    def restart(self, error: BackendError) -> Coroutine[Any, Any, None]:
        """Replace the lost shard by one with at least its capacity. The lost shard reports nothing more once this returns; the coroutine
        that it returns does the rest, and raises ShardGone."""
