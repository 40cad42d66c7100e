"""What the router needs of a scheduler."""

from __future__ import annotations

from typing import Protocol

from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationRequest, Limits
from tgi_core.wire.types import ShardInfo


class Load(Protocol):
    """How busy the scheduler is at one moment."""

    @property
    def queued(self) -> int:
        """Requests that wait."""

    @property
    def running(self) -> int:
        """Requests in the batch."""

    @property
    def blocks_free(self) -> int:
        """Blocks of the KV cache that nobody holds."""

    @property
    def blocks_total(self) -> int:
        """Blocks of the KV cache."""

    @property
    def query_tokens(self) -> int:
        """Tokens of all requests so far when their first step began."""

    @property
    def hit_tokens(self) -> int:
        """Those of them that were found in the cache."""


class Generator(Protocol):
    """Turns validated requests into streams of generations. Everything here is called on the event loop."""

    @property
    def info(self) -> ShardInfo:
        """The model that is open behind it, and what its backend declared."""

    @property
    def limits(self) -> Limits:
        """What a request may be; constant once the generator is up."""

    @property
    def sound(self) -> bool:
        """Whether what is computed is to be trusted: several rows of NaN in a short time are the device's fault."""

    @property
    def prefix_caching(self) -> bool:
        """Whether prompts are looked up in the cache."""

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Make ready for a request with that grammar, which needs it until the release. Raises InvalidGrammar, GrammarsBusy."""

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Queue a request. Raises `tgi_core.scheduler.types.Overloaded`."""

    async def healthy(self) -> bool:
        """Whether a request would be answered now."""

    def snapshot(self) -> Load:
        """The present load; cheap."""
