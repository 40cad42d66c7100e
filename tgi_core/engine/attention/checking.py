"""Self-checks of attention providers on their device: a few ragged rows, compared with plain torch in float32 on the CPU."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.attention.cache import BLOCK_SIZES, CacheScales, LayerShape, NewLayer, PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata, build
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.attention.torch_sdpa import TorchAttention

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""The allowed difference relative to the outputs' norm, by dtype: a few times the rounding error."""

FP8_TOLERANCE = 0.1
"""The same for an 8-bit cache: three fraction bits are off by 3 % on average."""

ROWS = ((16, 1), (0, 1), (131, 1), (0, 5), (63, 2), (20, 50))
"""(positions in the cache, tokens) of the rows that are run, on both sides of block and tile boundaries."""

SCALES = CacheScales(0.25, 4.0)
"""Scales of an 8-bit cache that is checked, whatever the checkpoint's."""

LONG_ROWS = (*ROWS, (700, 1), (1500, 1), (515, 33))
"""Rows that are long enough for a library to split them along their positions."""

Rows = Sequence[tuple[int, int]]

_CPU = torch.device("cpu")


class Attention(Protocol):
    """The part of a provider that is checked."""

    @property
    def new_layer(self) -> NewLayer:
        """Makes a layer's cache."""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """See `AttentionProvider`."""


@dataclass(frozen=True, slots=True)
class Case:
    """Rows to run, the block size, and the 8-bit dtype of the cache, or None for that of the queries."""

    rows: Rows = ROWS
    block_size: int = BLOCK_SIZES[0]
    cache_dtype: torch.dtype | None = None

    @property
    def row_blocks(self) -> int:
        """Blocks of each row: enough for the longest."""
        return -(-max(past + take for past, take in self.rows) // self.block_size)

    @property
    def blocks(self) -> int:
        """Blocks of all rows."""
        return len(self.rows) * self.row_blocks


def disagreement(
    provider: Attention, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device, case: Case | None = None
) -> str:
    """How far outputs are from the reference, if too far; empty if all layers agree. Equal layers run once."""
    case, seen = case or Case(), set()
    tolerance = TOLERANCES[dtype] if case.cache_dtype is None else FP8_TOLERANCE
    scales = CacheScales() if case.cache_dtype is None else SCALES
    for asked in layers:
        layer = replace(asked, shape=replace(asked.shape, scales=scales))
        if (kind := kind_of(layer)) in seen:
            continue
        seen.add(kind)
        difference = _difference(provider, layer, dtype, device, case)
        if not difference <= tolerance:
            return f"outputs differ from the reference by {difference:.2g} of their norm"
    return ""


def _difference(provider: Attention, layer: AttentionLayer, dtype: torch.dtype, device: torch.device, case: Case) -> float:
    """The largest relative difference over two steps: one for all past positions, one for the rows' own tokens. NaN if there is any."""
    generator = torch.Generator().manual_seed(0)
    reference = TorchAttention()
    cache = _poisoned(provider.new_layer, layer.shape, dtype, device, case)
    expected_cache = reference.new_layer(layer.shape, case.blocks, case.block_size, torch.float32, _CPU)
    expected_parameters = _on_host(layer.parameters)
    differences = []
    for rows in (row_inputs(case, past=True), row_inputs(case, past=False)):
        tokens = sum(row_input.take for row_input in rows)
        # times their scales, a power of two, keys and values are stored as they are drawn
        factors = (1 / layer.shape.scales.key, layer.shape.scales.key, layer.shape.scales.value)
        drawn = [
            torch.randn(heads, tokens, width, generator=generator).to(dtype) * factor
            for (heads, width), factor in zip(operands(layer), factors, strict=True)
        ]
        found = _run(provider, cache, rows, [x.to(device) for x in drawn], layer.parameters, case.block_size)
        expected = _run(reference, expected_cache, rows, [x.float() for x in drawn], expected_parameters, case.block_size)
        differences.append(float((found.float().cpu() - expected).norm() / expected.norm()))
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def kind_of(layer: AttentionLayer) -> Hashable:
    """What layers have in common that are computed alike: everything but the numbers in their parameters' tensors."""
    asked = layer.parameters
    plain = replace(asked, sinks=None, bias=None, selected=None)
    return layer.shape, layer.heads, plain, asked.sinks is not None, asked.bias is not None


def _on_host(parameters: AttentionParameters) -> AttentionParameters:
    sinks, bias = parameters.sinks, parameters.bias
    sinks, bias = None if sinks is None else sinks.float().cpu(), None if bias is None else bias.to(_CPU)
    return replace(parameters, sinks=sinks, bias=bias)


def _run(
    provider: Attention,
    cache: PagedLayer,
    rows: list[RowInput],
    drawn: list[Tensor],
    parameters: AttentionParameters,
    block_size: int,
) -> Tensor:
    """One layer of one step, as a runner does it."""
    query, key, value = drawn
    step = build(rows, block_size, query.device)
    if step.begun is not None:
        cache.zero_blocks(step.begun)
    cache.write(step.slots, key, value)
    return provider.attend(query, cache, step, parameters)


def _poisoned(new_layer: NewLayer, shape: LayerShape, dtype: torch.dtype, device: torch.device, case: Case) -> PagedLayer:
    """A cache full of NaN, as failed rows would leave it."""
    cache = new_layer(shape, case.blocks, case.block_size, case.cache_dtype or dtype, device)
    slots = torch.arange(case.block_size, (case.blocks + 1) * case.block_size, device=device)
    key, value = (
        torch.full((shape.kv_heads, len(slots), width), math.nan, dtype=dtype, device=device)
        for width in (shape.key_width, shape.value_width)
    )
    cache.write(slots, key, value)
    return cache


def operands(layer: AttentionLayer) -> tuple[tuple[int, int], ...]:
    """Heads and width of queries, keys and values."""
    shape = layer.shape
    return (layer.heads, shape.key_width), (shape.kv_heads, shape.key_width), (shape.kv_heads, shape.value_width)


def row_inputs(case: Case, past: bool) -> list[RowInput]:
    """The step that runs the rows' past positions, or the one that runs their own tokens."""
    inputs = []
    for place, (start, take) in enumerate(case.rows):
        first, count = (0, start) if past else (start, take)
        if count:
            tokens = [0] * (first + count)
            table = [1 + place * case.row_blocks + i for i in range(case.row_blocks)]
            request = Request(place + 1, tuple(tokens), len(tokens), 0, (tuple(table),), 1)
            inputs.append(RowInput(RowState(request, tokens, first, (table,)), first, count, True))
    return inputs
