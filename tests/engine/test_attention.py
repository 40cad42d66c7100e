"""Attention over the paged cache against the textbook, position by position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tgi_core.backend import Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.attention.cache import LayerShape, PagedCache, stacked_layers
from tgi_core.engine.attention.interface import AttentionParameters, KeyBias, NotRagged, attention_forward
from tgi_core.engine.attention.metadata import build
from tgi_core.engine.attention.torch_sdpa import TorchAttention

BLOCK, HEADS, KV_HEADS, KEY, VALUE = 4, 4, 2, 8, 6
CPU = torch.device("cpu")


def textbook(query: Tensor, keys: Tensor, values: Tensor, position: int, how: AttentionParameters, head: int) -> Tensor:
    """One query head at one position: query [width], keys and values [positions, width]."""
    first = 0
    if how.window is not None:
        first = max(first, position + 1 - how.window)
    if how.chunk is not None:
        first = max(first, position // how.chunk * how.chunk)
    scores = [float(query @ keys[i]) * how.scaling for i in range(first, position + 1)]
    if how.softcap is not None:
        scores = [math.tanh(score / how.softcap) * how.softcap for score in scores]
    if how.bias is not None:
        scores = [score + float(how.bias.table[head, first + i]) for i, score in enumerate(scores)]
    total = sum(map(math.exp, scores)) + (0 if how.sinks is None else math.exp(float(how.sinks[head])))
    return sum((math.exp(s) / total * values[first + i] for i, s in enumerate(scores)), torch.zeros(values.shape[1]))


parameters = st.builds(
    AttentionParameters,
    scaling=st.just(0.35),
    window=st.sampled_from([None, 1, 3, 100]),
    softcap=st.sampled_from([None, 2.0]),
    chunk=st.sampled_from([None, 4]),
    sinks=st.sampled_from([None, torch.tensor([0.3, -1.0, 2.0, 0.0])]),
    bias=st.sampled_from([None, KeyBias.of(torch.tensor([0.5, -0.3, 0.0, 0.1])[:, None] * torch.arange(24).sqrt())]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), min_size=1, max_size=4), parameters, st.integers(0, 99))
def test_textbook(rows: list[tuple[int, int]], how: AttentionParameters, seed: int) -> None:
    """Any mix of decode and prefill rows, with windows, chunks, soft caps, sinks, biases and values of another width."""
    generator = torch.Generator().manual_seed(seed)
    cache = PagedCache((LayerShape(KV_HEADS, KEY, VALUE),), 40, BLOCK, torch.float32, CPU)
    layer, free = cache.layers[0], torch.randperm(40, generator=generator).add(1).tolist()
    # A stale block is poison: nothing may look beyond what its row has written.
    layer.keys[1:] = layer.values[1:] = float("nan")
    row_inputs, truth = [], []
    for id, (past, take) in enumerate(rows):
        length = past + take
        table = [free.pop() for _ in range(-(-length // BLOCK))]
        keys, values = (
            torch.randn(length, KV_HEADS, KEY, generator=generator),
            torch.randn(length, KV_HEADS, VALUE, generator=generator),
        )
        layer.zero_blocks(torch.tensor(table[-1:]))
        slots = torch.tensor([table[i // BLOCK] * BLOCK + i % BLOCK for i in range(past)], dtype=torch.long)
        layer.write(slots, keys[:past].transpose(0, 1), values[:past].transpose(0, 1))
        request = Request(id, tuple(range(length)), length, 0, (tuple(table),), take)
        row_inputs.append(RowInput(RowState(request, list(range(length)), past, (table,)), past, take, True))
        truth.append((keys, values, torch.randn(take, HEADS, KEY, generator=generator)))
    step = build(row_inputs, BLOCK, CPU)
    order = [row_inputs.index(row_input) for row_input in step.order]
    fresh = [[part[row_inputs[i].start :] for part in truth[i][:2]] for i in order]
    layer.write(step.slots, *(torch.cat([f[side] for f in fresh]).transpose(0, 1) for side in (0, 1)))
    queries = torch.cat([truth[i][2] for i in order]).transpose(0, 1)
    found = TorchAttention().attend(queries, layer, step, how)
    at = 0
    for i in order:
        keys, values, query = truth[i]
        for offset in range(row_inputs[i].take):
            for head in range(HEADS):
                kv = head // (HEADS // KV_HEADS)
                wanted = textbook(query[offset, head], keys[:, kv], values[:, kv], row_inputs[i].start + offset, how, head)
                assert torch.allclose(found[at, head], wanted, atol=1e-4)
            at += 1


def test_metadata() -> None:
    """Decode rows come first; slots follow the tables; a block that is begun and not filled is named, a continued one isn't."""
    rows = [
        RowState(Request(i, (0,) * n, n, 0, (tuple(t),), 1), list(range(n)), 0, (t,))
        for i, n, t in ((1, 6, [3, 5]), (2, 9, [2, 7, 4]))
    ]
    step = build([RowInput(rows[0], 0, 6, True), RowInput(rows[1], 8, 1, True)], BLOCK, CPU)
    assert step.input_ids.tolist() == [8, 0, 1, 2, 3, 4, 5] and step.positions.tolist() == [8, 0, 1, 2, 3, 4, 5]
    assert step.slots.tolist() == [16, 12, 13, 14, 15, 20, 21]
    assert step.cu_seqlens.tolist() == [0, 1, 7]
    assert step.begun is not None and sorted(step.begun.tolist()) == [4, 5]
    again = build([RowInput(rows[0], 5, 1, True)], BLOCK, CPU)
    assert again.begun is None and again.decode is not None and again.decode.equal


def test_refusals() -> None:
    """What a ragged step cannot honour is refused, never ignored."""
    query = torch.zeros(1, 1, 2, 4)
    with pytest.raises(NotRagged, match="mask"):
        attention_forward(nn.Identity(), query, query, query, torch.zeros(1, 1, 2, 2))
    with pytest.raises(NotRagged, match="bias"):
        attention_forward(nn.Identity(), query, query, query, None, position_bias=torch.zeros(1))
    with pytest.raises(NotRagged, match="causal"):
        attention_forward(nn.Identity(), query, query, query, None, is_causal=False)


def test_stacked_layers_are_zeroed_together() -> None:
    """A step's blocks are zeroed in all layers by two operators, in the first layer's turn; every layer's memory is its own otherwise."""
    shapes = (LayerShape(KV_HEADS, KEY, VALUE),) * 3
    layers = stacked_layers(shapes, 4, BLOCK, torch.float32, CPU)
    for place, layer in enumerate(layers):
        layer.keys[1:], layer.values[1:] = place + 1, -place - 1
    with Operators() as seen:
        for layer in layers:
            layer.zero_blocks(torch.tensor([2, 0]))
    assert seen.names.count("index_fill_") == 2
    for place, layer in enumerate(layers):
        for part, value in ((layer.keys, place + 1), (layer.values, -place - 1)):
            assert not part[[0, 2]].any() and bool((part[[1, 3, 4, 5]] == value).all())
            assert part.is_contiguous()
    other = stacked_layers((*shapes, LayerShape(KV_HEADS, KEY, KEY)), 4, BLOCK, torch.float32, CPU)
    assert [layer.values.shape[-1] for layer in other] == [VALUE] * 3 + [KEY]


class Operators(TorchDispatchMode):
    """Notes what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
