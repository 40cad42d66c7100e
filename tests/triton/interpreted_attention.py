"""The attention kernels in Triton's interpreter. `test_attention.py` runs this file in a process of its own: an import chooses.

With TGI_TRITON_CASES=N the first N ragged cases are run.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from tests.triton.ragged_cases import FACTORS, TOLERANCES, draw_case, draw_step
from tgi_core.engine.attention.cache import LayerShape
from tgi_core.engine.attention.checking import Case, disagreement
from tgi_core.engine.attention.interface import AttentionParameters, KeyBias
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.triton.attention_blocks import load_queries
from tgi_core.engine.triton.launching import Operands, launch_decode, launch_varlen, launch_write
from tgi_core.engine.triton.provider import TritonAttention, TritonLayer
from tgi_core.engine.triton.shape import AttentionShape
from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter")

CASES = int(os.environ.get("TGI_TRITON_CASES", "30"))
CPU = torch.device("cpu")
TILES = TileTable(
    "none", 1 << 20, (TileRow(Phase.DECODE, 4, 256, Tile(16, 32, 4, 2)), TileRow(Phase.PREFILL, 4, 256, Tile(32, 32, 4, 2)))
)


def test_cases_have_everything() -> None:
    """Every value of every factor is in some case, so that none is left out by chance."""
    for name, values in FACTORS.items():
        drawn = Counter(str(draw_case(seed).drawn[name]) for seed in range(CASES))
        assert set(drawn) == set(map(str, values)), name


@pytest.mark.parametrize("seed", range(CASES))
def test_textbook(seed: int) -> None:
    """A ragged step, among blocks that hold NaN where its rows have not written, is what the textbook says; padding is zeros."""
    case = draw_case(seed)
    step = draw_step(case, seed)
    out = torch.full((*step.query.shape[1::-1][:1], case.shape.heads, case.shape.value_width), torch.nan, dtype=case.dtype)
    operands = Operands(case.shape, out, step.query, step.keys, step.values, step.scale, sinks=step.sinks, slopes=step.slopes)
    if step.arrays.decode_rows:
        launch_decode(operands, step.arrays, case.decode, case.splits)
    if len(step.arrays.lengths) > step.arrays.decode_rows:
        launch_varlen(operands, step.arrays, case.prefill)
    difference = (out.float() - step.expected).norm() / step.expected.norm().clamp_min(1e-3)
    assert difference <= TOLERANCES[case.dtype], f"{difference:.2g}: {case}"
    assert not out[step.expected == 0].any(), str(case)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("widths", [(64, 64), (80, 80), (192, 128)])
def test_write(dtype: torch.dtype, widths: tuple[int, int]) -> None:
    """Keys and values land in their slots to the bit, from tensors of any strides; slot -1 is nowhere, and other places stay."""
    shape = AttentionShape(3, 1, *widths, page=16)
    slots = torch.tensor([33, -1, 16, 47, -1, *range(64, 84)])
    keys, values = (torch.full((6, 16, 3, width), torch.nan, dtype=dtype) for width in widths)
    key = torch.randn(len(slots), 3, widths[0]).to(dtype).transpose(0, 1)
    value = torch.randn(3, len(slots), widths[1]).to(dtype)
    launch_write(shape, keys, values, key, value, slots)
    for cache, source in ((keys, key), (values, value)):
        expected = torch.full_like(cache, torch.nan).flatten(0, 1)
        expected[slots[slots >= 0]] = source.transpose(0, 1)[slots >= 0]
        assert torch.equal(cache.flatten(0, 1).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_cache_of_8_bits() -> None:
    """A cache in e4m3 is scaled, cast and read: exactly, for numbers that the type has."""
    shape = AttentionShape(2, 4, 64, 64, page=16)
    case = replace(draw_case(0), shape=shape, rows=((37, 1), (0, 1)), padding=0, dtype=torch.float32)
    step = draw_step(case, 5)
    scales = (0.25, 0.5)
    rounded = [cache.nan_to_num(0.0).to(torch.float8_e4m3fn).float() for cache in (step.keys, step.values)]
    plain = [cache * scale for cache, scale in zip(rounded, scales, strict=True)]
    stored = [torch.zeros(cache.shape, dtype=torch.float8_e4m3fn) for cache in rounded]
    slots = torch.arange(stored[0].shape[0] * 16)
    launch_write(shape, *stored, *(cache.flatten(0, 1).transpose(0, 1) for cache in plain), slots, (4.0, 2.0))
    for cache, wanted in zip(stored, rounded, strict=True):
        assert torch.equal(cache.float(), wanted)
    results = []
    for caches, key_scale, value_scale in ((stored, *scales), (plain, 1.0, 1.0)):
        out = torch.empty(2, shape.heads, 64)
        launch_decode(Operands(shape, out, step.query, *caches, step.scale * key_scale, value_scale), step.arrays, case.decode, 3)
        results.append(out)
    assert torch.allclose(*results, atol=1e-5)


LINE = KeyBias.of(torch.tensor([[0.5], [0.0625]]) * torch.arange(200))


@pytest.mark.parametrize(
    "parameters",
    [
        AttentionParameters(0.25),
        AttentionParameters(0.2, window=24, sinks=torch.tensor([0.5, -1.0])),
        AttentionParameters(0.2, bias=LINE),
    ],
)
def test_self_check(parameters: AttentionParameters) -> None:
    """The provider checks itself on what layers ask for, and finds nothing wrong."""
    layers = [AttentionLayer(LayerShape(1, 16, 16), 2, parameters)]
    assert TritonAttention(TILES, 4).probe() == ""
    assert TritonAttention(TILES, 4).self_check(layers, torch.float32, CPU) == ""


def test_only_linear_biases() -> None:
    """Kernels take slopes; a table that was rounded is left to another provider."""
    curved, layers = KeyBias.of((LINE.table * 3).bfloat16().float().sqrt()), [LayerShape(1, 16, 16)]
    refusal = TritonAttention(TILES, 4).refusal
    assert refusal(layers, [AttentionParameters(0.2, bias=LINE)], torch.float32) == ""
    assert refusal(layers, [AttentionParameters(0.2, bias=curved)], torch.float32) == "biases that are not linear"


def test_self_check_of_8_bits() -> None:
    """The provider has the cache that its chip reads, and agrees with float32 over it."""
    layers = [AttentionLayer(LayerShape(1, 16, 16), 2, AttentionParameters(0.25))]
    provider = TritonAttention(replace(TILES, fp8="fp8e4nv"), 4)
    assert provider.kv_cache_dtypes == (torch.float8_e4m3fn,) and TritonAttention(TILES, 4).kv_cache_dtypes == ()
    assert disagreement(provider, layers, torch.float32, CPU, Case(cache_dtype=torch.float8_e4m3fn)) == ""


def test_arrays_alone() -> None:
    """A step is computed from its arrays alone, in blocks of 128 and with rows of three tokens, as drafts make them."""
    shape = AttentionShape(2, 2, 64, 64, page=128)
    case = replace(draw_case(1), shape=shape, rows=((120, 3), (3, 3)), padding=0, dtype=torch.float32)
    step = draw_step(case, 3)
    layer = TritonLayer(LayerShape(2, 64, 64), len(step.keys) - 1, 128, torch.float32, CPU)
    layer.keys.copy_(step.keys)
    layer.values.copy_(step.values)
    out = TritonAttention(TILES, 4).attend_rows(step.query, layer, step.arrays, AttentionParameters(step.scale))
    assert torch.allclose(out, step.expected, atol=1e-5)


@triton.jit
def queries_kernel(
    out: tl.tensor,
    query: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    head_stride: tl.tensor,
    token_stride: tl.tensor,
    shape: tl.constexpr,
) -> None:
    """One query, as the attention kernels load them."""
    lane = tl.arange(0, 16)
    q = load_queries(query, token + 0 * lane, head + 0 * lane, lane == 0, head_stride, token_stride, shape)
    tl.store(out + tl.arange(0, 16)[None, :] + 0 * lane[:, None], q, mask=(lane == 0)[:, None])


@pytest.mark.parametrize(("head", "head_stride"), [(127, 2**24), (127, 2**25), (63, 2**30), (2, 2**30)])
def test_queries_far_apart(head: int, head_stride: int) -> None:
    """Heads × tokens × width of a long prompt pass 2³¹ elements, where a head's offset in 32 bits would be another one.

    The token's offset takes back what the head's adds, so that a query of 32 elements is enough for any size.
    """
    query, out = torch.randn(32), torch.zeros(16)
    queries_kernel[(1,)](out, query, 1, head, head_stride, 16 - head * head_stride, shape=AttentionShape(128, 1, 16, 16, page=16))
    assert torch.equal(out, query[16:])
