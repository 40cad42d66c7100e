"""The interface of the router to a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.scheduler.events import ReplicaState
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationRequest, Limits
from tgi_core.wire.types import ShardInfo


class Load(Protocol):
    """Snapshot of the scheduler's load."""

    @property
    def queued(self) -> int:
        """Number of waiting requests."""

    @property
    def running(self) -> int:
        """Number of requests in the batch."""

    @property
    def blocks_free(self) -> int:
        """Number of free blocks of the KV cache."""

    @property
    def blocks_total(self) -> int:
        """Number of blocks of the KV cache."""

    @property
    def query_tokens(self) -> int:
        """Prompt tokens of all requests so far, counted when their first step began."""

    @property
    def hit_tokens(self) -> int:
        """Number of those tokens that were found in the cache."""

    @property
    def replicas(self) -> Sequence[ReplicaState]:
        """The state of each replica, if there are several."""


class Generator(Protocol):
    """Turns validated requests into streams of generations. All methods are called on the event loop."""

    @property
    def info(self) -> ShardInfo:
        """The open model and the capabilities of its backend."""

    @property
    def limits(self) -> Limits:
        """The limits of a request; constant once the generator is running."""

    @property
    def sound(self) -> bool:
        """Whether the output can be trusted: several rows of NaN within a short time indicate a faulty device."""

    @property
    def prefix_caching(self) -> bool:
        """Whether prefix caching is enabled."""

    @property
    def speculates(self) -> bool:
        """Whether requests get drafts, including from their prediction."""

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Prepare a grammar, which is kept until it is released. Raises InvalidGrammar, GrammarsBusy."""

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images. Raises `tgi_core.media.errors.ImageRejected` and `MediaBusy`."""

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Queue a request. Raises `tgi_core.scheduler.types.Overloaded`."""

    async def healthy(self) -> bool:
        """Return whether a request would be served now."""

    def snapshot(self) -> Load:
        """Return the current load; cheap."""
