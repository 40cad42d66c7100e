"""Client of a shard in another process or on another machine, over the stream of steps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from tgi_core.backend import BackendError, Capacity, Progress, Scope, WarmupPlan
from tgi_core.client.channel import CallFailed, ShardChannel, StepStream
from tgi_core.client.grammars import HeldGrammars, Release
from tgi_core.client.result_validator import invalid
from tgi_core.client.steps_link import StepsLink, open_link
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.describing import decode_capacity, decode_health, decode_info, encode_plan
from tgi_core.wire.health import ShardHealth
from tgi_core.wire.preparing import check_prepared, encode_prepare, encode_release
from tgi_core.wire.results import decode_result
from tgi_core.wire.tokenizing import decode_tokens, encode_prompt
from tgi_core.wire.turns import encode_turn
from tgi_core.wire.types import Fault, ShardInfo, Turn, TurnResult

T = TypeVar("T")

_PROGRESS_EVERY_S = 0.2
_HEALTH_TIMEOUT_S = 5.0


class GrpcShard:
    """A `ShardClient` of a shard that announces tgi-core's API. Bound to one event loop. Turns go over the socket `steps` if there
    is one, else over the channel like everything else. Set `vocab_size` to the shard's."""

    def __init__(self, channel: ShardChannel, steps: socket.socket | None = None) -> None:
        self._channel = channel
        self._socket = steps
        self.vocab_size = 0
        self._grammars = HeldGrammars(self._prepare, self._drop)
        self._link: StepsLink | None = None
        self._stream: StepStream | StepsLink | None = None

    async def info(self) -> ShardInfo:
        """Wait until the shard has opened its model. Return its description. Raises BackendError."""
        info = decode_info(await self._call("Info", pb.InfoRequest()))
        self.vocab_size = info.capabilities.vocab_size
        return info

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up. A shard that is warm already returns the same capacity again. Raises BackendError."""
        request = pb.WarmupRequest(plan=encode_plan(plan))
        response = await with_progress(self._call("Warmup", request), self, progress)
        try:
            return decode_capacity(response.capacity)
        except ValueError as error:
            raise invalid(str(error)) from error

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile a grammar on the shard while it runs steps. Raises InvalidGrammar, GrammarsBusy, BackendError."""
        return await self._grammars.hold(grammar, cost)

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images on the shard. Raises ImageRejected, MediaBusy, BackendError."""
        response = await self._call("TokenizeImages", encode_prompt(prompt))
        try:
            return decode_tokens(response)
        except ValueError as error:
            raise invalid(str(error)) from error

    async def exchange(self, turn: Turn) -> TurnResult:
        """Execute one turn: a message and its answer. Raises DeviceLost if the shard is lost."""
        try:
            message = encode_turn(turn)
        except (ValueError, TypeError) as error:  # the rest of the turn must still reach the shard
            rest = await self.exchange(replace(turn, launch=None))
            return rest if rest.refused else replace(rest, refused=Fault(Scope.REQUEST, "InvalidRequest", str(error)))
        try:
            if self._stream is None:
                self._stream = await self._open_stream()
            return decode_result(await self._stream.exchange(message), self.vocab_size)
        except CallFailed as error:
            raise error.translated() from error
        except ValueError as error:
            raise invalid(str(error)) from error

    async def health(self) -> ShardHealth:
        """Query the shard's health, which works while it computes. Raises DeviceLost if the shard or its device is lost."""
        try:
            return decode_health(await self._channel.call("Health", pb.HealthRequest(), _HEALTH_TIMEOUT_S))
        except CallFailed as error:
            raise error.translated() from error
        except ValueError as error:
            raise invalid(str(error)) from error

    async def healthy(self) -> bool:
        """Return whether the shard responds and has not lost its device."""
        try:
            await self.health()
        except BackendError:
            return False
        return True

    async def ended(self) -> str:
        """Wait until the connection breaks."""
        await self._channel.broken()
        return f"the connection to the shard at {self._channel.address} broke"

    async def abandon(self) -> None:
        """Close the channel; the shard keeps running."""
        await self.close()

    async def close(self) -> None:
        """Disconnect from the shard, which drops the state of this router. Idempotent."""
        if self._link is not None:
            self._link.close()
        await self._channel.close()

    async def _open_stream(self) -> StepStream | StepsLink:
        if self._socket is None:
            return self._channel.steps()
        self._link = await open_link(self._socket)
        return self._link

    async def _prepare(self, grammar: Grammar, cost: Cost) -> None:
        check_prepared(await self._call("Prepare", encode_prepare(grammar, cost)))

    async def _drop(self, grammar: Grammar) -> None:
        await self._call("Prepare", encode_release(grammar))

    async def _call(self, name: str, request: Any) -> Any:
        try:
            return await self._channel.call(name, request)
        except CallFailed as error:
            raise error.translated() from error


async def with_progress(work: Coroutine[Any, Any, T], shard: GrpcShard, progress: Progress) -> T:
    """Wait for slow work in the shard and return its result; its progress is read from the shard's health."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_PROGRESS_EVERY_S))[0]:
            done = (await shard.health()).task
            if done is not None:
                progress(done.what, done.done, done.total, done.unit)
        return await task
    finally:
        task.cancel()
