"""Loads one rank's part of a model: reads only the ranges that the rank holds."""

from __future__ import annotations

import logging
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tgi_core.backend import InvalidModel, Progress, Unsupported
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.models.loading import (
    STEP_NAME,
    build_empty,
    is_rounded,
    load_through_transformers,
    put,
    put_weight,
    round_head,
    tied_groups,
)
from tgi_core.engine.models.sources import Source, check_shape, find_sources, keeps_float32
from tgi_core.engine.parallel.layers import insert_collectives
from tgi_core.engine.parallel.partition import Partition, Shard, partition
from tgi_core.engine.quantization.stored import StoredWeights

_log = logging.getLogger("tgi_core.engine")


def check_partition(config: PretrainedConfig, dtype: torch.dtype, rank: int, world: int, most: int) -> None:
    """Refuse a model that cannot be divided, or has more than `most` elements, before ranks connect and weights are read. Raises
    Unsupported, InvalidModel."""
    partition(_empty(config, dtype, world, most), rank, world)


def load_partition(
    config: PretrainedConfig, stored: StoredWeights, dtype: torch.dtype, progress: Progress, collectives: Collectives
) -> PreTrainedModel:
    """This rank's part of the model, with its collectives. Raises InvalidModel naming file and tensor, Unsupported."""
    total = stored.checkpoint.num_bytes
    progress(STEP_NAME, 0, total, "B")
    model = _empty(config, dtype, collectives.world, stored.most_elements)
    whole = {name: value.shape for name, value in chain(*_named(model))}
    sources = None if keeps_float32(model) and dtype is not torch.float32 else find_sources(model, stored)
    tied = tied_groups(model)
    parts = partition(model, collectives.rank, collectives.world)
    if sources is None:
        _log.warning("%s: each rank reads all weights before it keeps its part", config.model_type)
        _fill_from_model(model, parts, load_through_transformers(config, stored, dtype))
    else:
        _fill(model, parts, _with_twins(sources, tied, parts), whole, stored, progress)
    _share(model, parts, tied)
    left = [name for name, value in chain(*_named(model)) if value.is_meta]
    if left:
        raise InvalidModel(f"{stored.checkpoint.file}: lacks tensor {left[0]!r} of the model ({len(left)} missing)")
    round_head(model, stored.quantize, dtype)
    insert_collectives(model, parts, collectives, whole)
    collectives.meet()  # reading takes some ranks longer than others, and the device's own timeouts do not allow for that
    progress(STEP_NAME, total, total, "B")
    return model.eval().requires_grad_(False)


def _empty(config: PretrainedConfig, dtype: torch.dtype, world: int, most: int) -> PreTrainedModel:
    model = build_empty(config, dtype, most)
    if model is None:
        raise Unsupported(
            f"--num-shard {world}: model type {config.model_type!r} cannot be divided while it is built; leave it out"
        )
    return model


def _named(model: PreTrainedModel) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """Parameters, a shared one under each of its names, and buffers."""
    return list(model.named_parameters(remove_duplicate=False)), list(model.named_buffers(remove_duplicate=False))


def _with_twins(sources: dict[str, Source], tied: list[set[str]], parts: Partition) -> dict[str, Source]:
    """Tied weights are stored once, and read once if a rank holds the same part of each."""
    for group in tied:
        first, *others = _by_size(group, parts)
        source = next((sources[name] for name in sorted(group) if name in sources), None)
        if source is None:
            continue
        sources[first] = source
        for name in others:
            if _shares(parts, first, name):
                sources.pop(name, None)
            else:
                sources[name] = source
    return sources


def _by_size(group: set[str], parts: Partition) -> list[str]:
    """Whole weights first."""
    return sorted(group, key=lambda name: (name in parts.shards, name))


def _shares(parts: Partition, first: str, name: str) -> bool:
    """Whether a tied weight can be the first one, or a view of it."""
    return first not in parts.shards or parts.shards.get(name) == parts.shards[first]


def _fill(
    model: PreTrainedModel,
    parts: Partition,
    sources: dict[str, Source],
    whole: dict[str, torch.Size],
    stored: StoredWeights,
    progress: Progress,
) -> None:
    done, total = 0, stored.checkpoint.num_bytes
    for name, current in chain(*_named(model)):
        source = sources.get(name)
        if source is None:
            continue
        check_shape(source, source.first.name, whole[name])
        rounded = bool(stored.quantize) and is_rounded(model, name)
        shard, weight = parts.shards.get(name), source.weight(stored, current.dtype, rounded)
        if weight is not None:
            weight = weight if shard is None else shard.of_weight(weight)
            put_weight(model, name, weight)
            done += weight.num_bytes
        else:
            loaded = _read(source, shard, current, stored)
            put(model, name, loaded, is_parameter=isinstance(current, nn.Parameter))
            done += loaded.numel() * loaded.itemsize
        progress(STEP_NAME, min(done, total), total, "B")


def _read(source: Source, shard: Shard | None, current: Tensor, stored: StoredWeights) -> Tensor:
    """This rank's part of one weight, in new memory."""
    if shard is not None and source.stacked:
        shard = Shard(shard.dim - 1, shard.ranges)
    return source.copy_to(torch.empty(current.shape, dtype=current.dtype), stored, None if shard is None else shard.of)


def _fill_from_model(model: PreTrainedModel, parts: Partition, full: PreTrainedModel) -> None:
    values = dict(chain(*_named(full)))
    for name, current in chain(*_named(model)):
        if name in values:
            shard = parts.shards.get(name)
            value = values[name] if shard is None else shard.of(values[name])
            put(model, name, value.detach().clone(), is_parameter=isinstance(current, nn.Parameter))


def _share(model: PreTrainedModel, parts: Partition, tied: list[set[str]]) -> None:
    """Let tied weights share memory if a rank holds the same part of each; a part of a whole weight is a view of it."""
    for group in tied:
        first, *others = _by_size(group, parts)
        held = model.get_parameter(first)
        for name in others:
            if _shares(parts, first, name):
                shard = None if parts.shards.get(name) == parts.shards.get(first) else parts.shards[name]
                put(model, name, held if shard is None else shard.of(held), is_parameter=True)
