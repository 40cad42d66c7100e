"""Connects to a shard of either kind at an address."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import API_VERSION, BackendError, Progress
from tgi_core.client.base import ShardClient
from tgi_core.client.channel import CallFailed, ShardChannel
from tgi_core.client.grpc import GrpcShard, with_progress
from tgi_core.client.upstream_tgi.shard import UpstreamShard
from tgi_core.errors import StartupError
from tgi_core.model_files import read_optional_json, text_config
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.shard_access import ShardAccess
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.describing import decode_info
from tgi_core.wire.types import ShardInfo

_TIMEOUT_S = 30.0
"""Seconds that a shard may take to list its ranks."""


@dataclass(frozen=True, slots=True)
class ConnectedShard:
    """A shard that has opened its model, but is not warmed up yet."""

    shard: ShardClient
    info: ShardInfo


def hash_tokenizer(model: Path) -> str:
    """SHA-256 of the model's tokenizer.json in hexadecimal; router and shard must have the same."""
    return hashlib.sha256((model / "tokenizer.json").read_bytes()).hexdigest()


async def connect(
    address: str,
    model: Path,
    tokenizer: Tokenizer | None,
    progress: Progress,
    access: ShardAccess = ShardAccess(),  # noqa: B008  frozen
    reached: Callable[[], None] | None = None,
    steps: socket.socket | None = None,
) -> ConnectedShard:
    """Connect to the shard at `unix:PATH` or `HOST:PORT` and wait until it has opened its model. Raises StartupError.

    A shard that announces tgi-core's API must have the same major version and the same tokenizer. Any other is driven as a TGI
    shard, which requires its model's tokenizer. `reached` is called once connected, long before the model is open. `steps` is a
    socket for the turns.
    """
    channel = ShardChannel(address.replace("unix://", "unix:", 1), access)
    own = GrpcShard(channel, steps)
    try:
        if reached is not None:
            await own.health()
            reached()
        info = await with_progress(channel.call("Info", pb.InfoRequest()), own, progress)
        if not info.HasField("api"):
            if tokenizer is None:
                raise StartupError(f"shard at {address}: it does not speak this project's own API")
            await _check_alone(channel)
            upstream = UpstreamShard(channel, info, tokenizer, _vocab_size(model, tokenizer))
            return ConnectedShard(upstream, await upstream.info())
        _check(info, model, address)
        own.vocab_size = info.capabilities.vocab_size
        return ConnectedShard(own, decode_info(info))
    except (CallFailed, BackendError) as error:
        await channel.close()
        silent = isinstance(error, CallFailed) and error.unreachable and not address.startswith("unix:")
        hint = "; is it up, and do both sides use TLS, or neither?" if silent else ""
        raise StartupError(f"shard at {address}: {error}{hint}") from error
    except BaseException:
        await channel.close()
        raise


def _check(info: pb.InfoResponse, model: Path, address: str) -> None:
    if info.api.major != API_VERSION[0]:
        raise StartupError(
            f"shard at {address}: it speaks version {info.api.major}.{info.api.minor} of the API, this router "
            f"{API_VERSION[0]}.{API_VERSION[1]}; run the same release on both sides"
        )
    if info.tokenizer_hash and info.tokenizer_hash != hash_tokenizer(model):
        raise StartupError(f"shard at {address}: its tokenizer.json is not that of {model}; give both the same model")


def _vocab_size(model: Path, tokenizer: Tokenizer) -> int:
    """Return the vocabulary size of the model, which is often slightly larger than that of its tokenizer."""
    size = text_config(read_optional_json(model / "config.json")).get("vocab_size")
    return max(tokenizer.vocab_size, size if isinstance(size, int) else 0)


async def _check_alone(channel: ShardChannel) -> None:
    urls = (await channel.call("ServiceDiscovery", pb.ServiceDiscoveryRequest(), _TIMEOUT_S)).urls
    if len(urls) > 1:
        raise StartupError(f"shard at {channel.address}: one of {len(urls)}; a group of TGI shards is not supported")
