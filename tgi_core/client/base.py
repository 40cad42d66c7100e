"""The interface between the scheduler and a shard."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from tgi_core.backend import BackendError, Capabilities, Capacity, DeviceLost, Progress, WarmupPlan
from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.wire.types import ShardInfo, Turn, TurnResult


class ShardClient(Protocol):
    """A connection to a model server, local or remote. Turns take effect in the order of the calls; only one may be in progress."""

    async def info(self) -> ShardInfo:
        """Description of the open shard."""

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up and return the guaranteed capacity. Raises `tgi_core.backend.BackendError`."""

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile a grammar ahead of the requests that need it, and keep it until it is released. Raises InvalidGrammar,
        GrammarsBusy, BackendError."""

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images. Raises ImageRejected, MediaBusy, BackendError."""

    async def exchange(self, turn: Turn) -> TurnResult:
        """Send one turn and wait for its answer. Raises `tgi_core.backend.DeviceLost` if the shard is lost."""

    async def healthy(self) -> bool:
        """Return whether the shard responds."""

    async def ended(self) -> str:
        """Wait until the shard ends on its own, which may be never. Return the reason."""

    async def abandon(self) -> None:
        """Abandon the shard without waiting for it: a turn in progress raises DeviceLost, and a child process is killed."""

    async def close(self) -> None:
        """Shut down the shard. Idempotent."""


@dataclass(frozen=True, slots=True)
class ReadyShard:
    """A warm shard, ready for requests."""

    shard: ShardClient
    info: ShardInfo
    capacity: Capacity


Plan = Callable[[Capabilities], WarmupPlan]
"""Creates the warm-up plan of a shard from its capabilities."""


class Opener(Protocol):
    """Opens shards of one model."""

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """Open and warm up a shard. Raises StartupError."""


class TakenOver(DeviceLost):
    """Another router has taken over the shard. Taking it back would make the two routers alternate endlessly."""


class Replaced(DeviceLost):
    """The shard is replaced on purpose, for example by a newer version."""


class ShardGone(Exception):
    """The shard is lost for good. The message says why."""


class Supervisor(Protocol):
    """Replaces the shard behind a client."""

    @property
    def continues(self) -> bool:
        """Whether requests of a lost shard continue on its replacement."""

    def watch(self, ended: Callable[[BackendError], None]) -> None:
        """Call `ended` if the shard ends while no turn is in progress."""

    def restart(self, error: BackendError) -> Coroutine[Any, Any, None]:
        """Replace the lost shard by one with at least its capacity. The lost shard reports nothing more once this returns; the
        coroutine that it returns does the rest, and raises ShardGone."""
