"""What the scheduler knows of a shard."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from tgi_core.backend import BackendError, Capabilities, Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.wire.types import ShardInfo, Turn, TurnResult


class ShardClient(Protocol):
    """A model server, wherever it runs. Turns take effect in the order of the calls; at most one is under way."""

    async def info(self) -> ShardInfo:
        """What the shard has opened."""

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up and promise limits. Raises `tgi_core.backend.BackendError`."""

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Have a grammar compiled, and kept until it is released, before a request that needs it is sent. Raises InvalidGrammar,
        GrammarsBusy, BackendError."""

    async def exchange(self, turn: Turn) -> TurnResult:
        """Send one turn and wait for its answer. Raises `tgi_core.backend.DeviceLost` when the shard is gone."""

    async def healthy(self) -> bool:
        """Whether the shard answers."""

    async def ended(self) -> str:
        """Wait until the shard is gone without our doing, which may be never; why it is."""

    async def abandon(self) -> None:
        """Give it up without waiting for it: a turn under way raises DeviceLost, and a process of ours is killed."""

    async def close(self) -> None:
        """End the shard. Idempotent."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard that is ready for requests."""

    shard: ShardClient
    info: ShardInfo
    capacity: Capacity


Plan = Callable[[Capabilities], WarmupPlan]
"""What to ask of a shard, once it is known what it can do."""


class Opener(Protocol):
    """Opens shards of one model in one way."""

    async def open(self, plan: Plan, progress: Progress) -> Opened:
        """A shard that is warm. Raises StartupError."""


class TakenOver(DeviceLost):
    """Another router has the shard now; taking it back would only go on for ever."""


class ShardGone(Exception):
    """There is no shard any more, and there will be none. The message says why."""


class Supervisor(Protocol):
    """Replaces the shard behind a client."""

    @property
    def continues(self) -> bool:
        """Whether what ran on a lost shard goes on with the next one."""

    def watch(self, ended: Callable[[BackendError], None]) -> None:
        """Have `ended` called when the shard ends while nobody talks to it."""

    def restart(self, error: BackendError) -> Coroutine[Any, Any, None]:
        """Put another shard that promises as much into the place of the one lost, of which nothing more is heard once this returns. The
        rest, which is to be awaited, raises ShardGone."""
