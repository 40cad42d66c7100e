"""Codec for a shard's description and capacity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TypeVar

from tgi_core.backend import (
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    Determinism,
    Feature,
    Kernel,
    Memory,
    Mixing,
    SamplingField,
    WarmupPlan,
)
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.health import ShardHealth, ShardState, TaskProgress
from tgi_core.wire.types import ShardInfo

Word = TypeVar("Word", bound=Enum)

MOST_TOKENS = (1 << 32) - 1
"""The largest number that TGI's fields hold."""


def encode_info(info: ShardInfo, tokenizer_hash: str = "") -> pb.InfoResponse:
    """Encode a description: all of tgi-core's fields, and TGI's fields with the same meaning."""
    return pb.InfoResponse(
        dtype=info.dtype,
        device_type=info.device_kind,
        attention_impl="paged",
        block_size=first_block_size(info.capabilities),
        api=contract.Api(major=info.api[0], minor=info.api[1]),
        model=info.model,
        backend=info.backend,
        capabilities=_encode_capabilities(info.capabilities),
        tokenizer_hash=tokenizer_hash,
    )


def first_block_size(capabilities: Capabilities) -> int:
    """Return the block size that a router of TGI learns, which asks before warm-up: where that decides, a block holds a row, which
    has at most `max_positions` tokens."""
    return next(iter(capabilities.block_sizes), min(capabilities.max_positions, MOST_TOKENS))


def decode_info(message: pb.InfoResponse) -> ShardInfo:
    """Decode the description of a shard that announces its API."""
    return ShardInfo(
        model=message.model,
        backend=message.backend,
        device_kind=message.device_type,
        dtype=message.dtype,
        api=(message.api.major, message.api.minor),
        capabilities=_decode_capabilities(message.capabilities),
    )


def encode_plan(plan: WarmupPlan) -> contract.WarmupPlan:
    """Encode a plan; a limit of None is omitted."""
    return contract.WarmupPlan(
        max_rows=plan.max_rows,
        max_row_tokens=plan.max_row_tokens,
        max_step_tokens=plan.max_step_tokens,
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        features=sorted(feature.value for feature in plan.features),
        draft=plan.draft,
        window_blocks=plan.window_blocks,
    )


def decode_plan(message: contract.WarmupPlan) -> WarmupPlan:
    """Decode the plan of a router."""
    return WarmupPlan(
        max_rows=message.max_rows if message.HasField("max_rows") else None,
        max_row_tokens=message.max_row_tokens if message.HasField("max_row_tokens") else None,
        max_step_tokens=message.max_step_tokens if message.HasField("max_step_tokens") else None,
        num_blocks=message.num_blocks if message.HasField("num_blocks") else None,
        block_size=message.block_size if message.HasField("block_size") else None,
        features=frozenset(_known(Feature, message.features)),
        draft=message.draft,
        window_blocks=message.window_blocks if message.HasField("window_blocks") else None,
    )


def encode_capacity(capacity: Capacity) -> contract.Capacity:
    """Encode the capacity of a backend."""
    return contract.Capacity(
        groups=[
            contract.CacheGroup(
                kind=group.kind.value, block_size=group.block_size, num_blocks=group.num_blocks, window=group.window
            )
            for group in capacity.groups
        ],
        max_rows=capacity.max_rows,
        max_row_tokens=capacity.max_row_tokens,
        max_step_tokens=capacity.max_step_tokens,
        max_prefill_rows=capacity.max_prefill_rows,
        in_flight=capacity.in_flight,
        draft=capacity.draft,
        memory=[contract.Memory(name=item.name, num_bytes=item.num_bytes) for item in capacity.memory],
        compiles=capacity.compiles,
        takes=capacity.takes,
    )


def decode_capacity(message: contract.Capacity) -> Capacity:
    """Decode a capacity. Raises ValueError for an unknown kind of cache, whose blocks could not be granted."""
    return Capacity(
        groups=tuple(
            CacheGroup(
                CacheKind(group.kind), group.block_size, group.num_blocks, group.window if group.HasField("window") else None
            )
            for group in message.groups
        ),
        max_rows=message.max_rows,
        max_row_tokens=message.max_row_tokens,
        max_step_tokens=message.max_step_tokens,
        max_prefill_rows=message.max_prefill_rows,
        in_flight=message.in_flight,
        draft=message.draft,
        memory=tuple(Memory(item.name, item.num_bytes) for item in message.memory),
        compiles=message.compiles,
        takes=tuple(message.takes),
    )


def encode_health(health: ShardHealth) -> pb.HealthResponse:
    """Encode a shard's health."""
    task = health.task
    return pb.HealthResponse(
        state=health.state.value,
        progress=None if task is None else contract.Progress(what=task.what, done=task.done, total=task.total, unit=task.unit),
        last_step_age_ns=health.last_step_age_ns,
        turn_age_ns=health.turn_age_ns,
        turns=health.turns,
    )


def decode_health(message: pb.HealthResponse) -> ShardHealth:
    """Decode a shard's health. A TGI shard that responds is ready."""
    task = message.progress
    return ShardHealth(
        state=ShardState(message.state or "ready"),
        task=TaskProgress(task.what, task.done, task.total, task.unit) if message.HasField("progress") else None,
        turns=message.turns,
        last_step_age_ns=message.last_step_age_ns if message.HasField("last_step_age_ns") else None,
        turn_age_ns=message.turn_age_ns if message.HasField("turn_age_ns") else None,
    )


def _encode_capabilities(capabilities: Capabilities) -> contract.Capabilities:
    return contract.Capabilities(
        features=sorted(feature.value for feature in capabilities.features),
        sampling=sorted(field.value for field in capabilities.sampling),
        block_sizes=capabilities.block_sizes,
        mixing=capabilities.mixing.value,
        determinism=capabilities.determinism.value,
        vocab_size=capabilities.vocab_size,
        max_positions=capabilities.max_positions,
        adapters=capabilities.adapters,
        kernels=[contract.Kernel(part=kernel.part, name=kernel.name, reason=kernel.reason) for kernel in capabilities.kernels],
        cache_dtype=capabilities.cache_dtype,
        quantize=capabilities.quantize,
        proposals=capabilities.proposals,
        whole_images=capabilities.whole_images,
        whole_prompts=capabilities.whole_prompts,
    )


def _decode_capabilities(message: contract.Capabilities) -> Capabilities:
    """Decode capabilities. An unknown enum value counts as the one with the weakest guarantee."""
    return Capabilities(
        features=frozenset(_known(Feature, message.features)),
        sampling=frozenset(_known(SamplingField, message.sampling)),
        block_sizes=tuple(message.block_sizes),
        mixing=next(_known(Mixing, [message.mixing]), Mixing.NONE),
        determinism=next(_known(Determinism, [message.determinism]), Determinism.NONE),
        vocab_size=message.vocab_size,
        max_positions=message.max_positions,
        adapters=tuple(message.adapters),
        kernels=tuple(Kernel(kernel.part, kernel.name, kernel.reason) for kernel in message.kernels),
        cache_dtype=message.cache_dtype or "auto",
        quantize=message.quantize,
        proposals=message.proposals,
        whole_images=message.whole_images,
        whole_prompts=message.whole_prompts,
    )


def _known(kind: type[Word], words: Iterable[str]) -> Iterator[Word]:
    values = {member.value: member for member in kind}
    return (values[word] for word in words if word in values)
