"""The fused kernels in Triton's interpreter. `test_fused.py` runs this file in a process of its own, since the choice is made at import."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from torch import Tensor

from tests.engine.operator_checks import DTYPES, HEADS, WIDTHS, check_norms, check_silu_mul, check_store
from tests.engine.test_table_decoder import TorchKit, check_exact, open_torch
from tests.engine.tiny_models import save_tiny
from tests.triton.interpreted_attention import TILES
from tgi_core.backend import Request, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling import uniform
from tgi_core.engine.ahead.sampler_check import sampler_disagreement
from tgi_core.engine.attention.cache import KVCacheDtype
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.decoder.operators import Heads, HeadSizes
from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.sampler import Sampled, sample
from tgi_core.engine.triton.operators import TritonOperators
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.sampling import CHUNK, TritonSampler

FILTERED = int(os.environ.get("TGI_TRITON_FILTERED", "24"))
"""Rows with filters per case."""

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows(dtype: torch.dtype, width: int) -> None:
    """Norms and the gated activation, to the last bit or two, for any width and dtype."""
    check_norms(TritonOperators(), dtype, width)
    check_silu_mul(TritonOperators(), dtype, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "turned"), HEADS)
@pytest.mark.parametrize("with_norms", [False, True])
def test_store(dtype: torch.dtype, sizes: HeadSizes, turned: int, with_norms: bool) -> None:
    """Heads turned whole, in part or not at all, with norms and without."""
    check_store(TritonOperators(), dtype, sizes, turned, with_norms)


@pytest.mark.parametrize(("sizes", "turned"), HEADS)
def test_store_in_8_bits(sizes: HeadSizes, turned: int) -> None:
    """Keys and values are cast to the type of the cache."""
    check_store(TritonOperators(), torch.bfloat16, sizes, turned, True, torch.float8_e4m3fn)


def test_a_cache_of_another_layout_is_refused() -> None:
    """Keys are never written into memory whose layout is not known."""
    empty = torch.zeros(0)
    with pytest.raises(TypeError, match="layout"):
        TritonOperators().rope_and_cache(empty, empty, empty, Heads(HeadSizes(1, 1, 4), None, None), OtherLayer())


class OtherLayer:
    """A cache that keeps what it has to itself."""

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Nothing."""

    def zero_blocks(self, blocks: Tensor) -> None:
        """Nothing."""


SAMPLINGS = [Sampling(do_sample=i % 3 > 0, temperature=(0.1, 0.7, 1.0, 5.0)[i % 4], seed=i) for i in range(12)]


def live(samplings: list[Sampling]) -> list[RowState]:
    """One row per sampling."""
    return [RowState(Request(i, (1, 2, 3), 3, 0, ((1,),), 3, s), [1, 2, 3], 3, ([1],)) for i, s in enumerate(samplings)]


def chosen(logits: Tensor, samplings: list[Sampling], precision: torch.dtype = torch.float64) -> tuple[list[int], Tensor]:
    """Tokens and logprobs by the kernels."""
    temperatures = [s.temperature if s.do_sample else 0.0 for s in samplings]
    uniforms = torch.tensor([uniform(s.seed, 3) for s in samplings], dtype=torch.float32)
    filters = RowFilters.of(samplings, logits.shape[-1], precision, logits.device)
    sampler = TritonSampler(precision)
    tokens, logprobs = sampler.choose(logits, torch.tensor(temperatures, dtype=precision), uniforms, filters)
    return tokens.tolist(), logprobs


def wanted(logits: Tensor, samplings: list[Sampling]) -> Sampled:
    """The same by the sampler's own operators."""
    return sample(logits, live(samplings), None)


@pytest.mark.parametrize("vocab", [1, 15, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_of_the_formula(vocab: int, dtype: torch.dtype) -> None:
    """Greedy rows and rows with a temperature get the very tokens that the sampler makes, and their logprobs."""
    logits = (3 * torch.randn(12, vocab, generator=torch.Generator().manual_seed(vocab))).to(dtype)
    tokens, logprobs = chosen(logits, SAMPLINGS)
    expected = wanted(logits, SAMPLINGS)
    assert tokens == expected.tokens
    assert torch.allclose(logprobs, torch.tensor(expected.logprobs, dtype=torch.float32), atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("vocab", [1, 15, 300, CHUNK + 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_filters_of_the_formula(vocab: int, dtype: torch.dtype) -> None:
    """Rows with top-k, top-p and min-p, alone and together, some with many equal logits, get the sampler's tokens and logprobs."""
    chance = random.Random(vocab)
    samplings = []
    for number in range(FILTERED):
        top_k, top_p = chance.choice((0, 0, 1, 2, 7, 50, vocab)), chance.choice((1.0, 1.0, 0.05, 0.3, 0.9, 0.999))
        min_p, temperature = chance.choice((0.0, 0.0, 0.02, 0.4, 1.0)), chance.choice((0.3, 1.0, 1.7))
        drawn = Sampling(True, temperature, top_k, top_p, min_p=min_p, seed=number)
        samplings.append(drawn if chance.random() < 0.9 else Sampling())
    logits = 2 * torch.randn(FILTERED, vocab, generator=torch.Generator().manual_seed(vocab))
    logits = torch.where(torch.arange(FILTERED).unsqueeze(-1) % 3 == 0, (2 * logits).round() / 2, logits).to(dtype)
    tokens, logprobs = chosen(logits, samplings)
    expected = wanted(logits, samplings)
    assert tokens == expected.tokens
    assert torch.allclose(logprobs, torch.tensor(expected.logprobs, dtype=torch.float32), atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_the_self_check(precision: torch.dtype) -> None:
    """The check that a device's sampler passes at start finds nothing wrong."""
    assert sampler_disagreement(TritonSampler(precision), torch.device("cpu")) == ""


def test_steps_without_draws() -> None:
    """Without temperatures every row gets its argmax, of equal logits the one with the lowest id, in whichever chunk."""
    logits = torch.zeros(3, 2 * CHUNK + 5)
    logits[0, [7, 30, 2 * CHUNK]] = 5.0
    logits[1, [2 * CHUNK + 4, CHUNK + 9]] = 1.0
    tokens, logprobs = TritonSampler().choose(logits, None, torch.zeros(3))
    assert tokens.tolist() == [7, CHUNK + 9, 0]
    assert torch.allclose(logprobs, logits.log_softmax(-1).amax(-1), atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    """One bad number anywhere makes its row's token −1, drawn or not, and its mates get theirs."""
    samplings = [Sampling(), Sampling(do_sample=True, seed=5), Sampling(), Sampling(do_sample=True, seed=6)]
    logits = torch.randn(4, CHUNK + 100, generator=torch.Generator().manual_seed(1))
    for place in (0, 17, CHUNK - 1, CHUNK + 99):
        broken = logits.clone()
        broken[1:3, place] = bad
        tokens, _ = chosen(broken, samplings)
        assert tokens == [wanted(logits, samplings).tokens[0], -1, -1, wanted(logits, samplings).tokens[3]]


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_extremes(precision: torch.dtype) -> None:
    """A token with nearly all of the mass is drawn; the ends of [0, 1) draw the first and the last token that can be drawn."""
    logits = torch.zeros(3, CHUNK + 3)
    logits[0, CHUNK + 1] = 2000.0
    logits[1:, 0] = logits[1:, -1] = -2000.0
    ends = torch.tensor([0.5, 0.0, 1 - 2.0**-24])
    tokens, logprobs = TritonSampler(precision).choose(logits, torch.ones(3, dtype=precision), ends)
    assert tokens.tolist() == [CHUNK + 1, 1, CHUNK + 1] and logprobs[0] == 0


@pytest.mark.parametrize(("precision", "least"), [(torch.float64, 5e-324), (torch.float32, 1e-45)])
def test_the_least_temperature_is_the_argmax(precision: torch.dtype, least: float) -> None:
    """A temperature whose inverse is no finite number draws the likeliest token, for certain."""
    logits = torch.randn(2, CHUNK + 9, generator=torch.Generator().manual_seed(2))
    tokens, logprobs = TritonSampler(precision).choose(
        logits, torch.full((2,), least, dtype=precision), torch.tensor([0.0, 0.99])
    )
    assert tokens.tolist() == logits.argmax(-1).tolist() and not logprobs.any()


@pytest.mark.parametrize("attention", [TorchAttention(), TritonAttention(TILES, 4)], ids=lambda provider: provider.name)
def test_one_layer_is_token_exact(attention: AttentionProvider, tmp_path: Path) -> None:
    """A decoder with norms of heads runs from its table with these kernels, in chunks, beside others, and makes `generate`'s tokens."""
    kit = TorchKit(TritonOperators())
    kit.provider = attention
    check_exact(save_tiny("qwen3", tmp_path, num_hidden_layers=1), kit)


def test_one_layer_over_8_bits(tmp_path: Path) -> None:
    """It proves over a cache of 8 bits as well."""
    kit = TorchKit(TritonOperators())
    kit.provider = TritonAttention(replace(TILES, fp8="fp8e4nv"), 4)
    kit.kv_cache_dtype = KVCacheDtype("float8_e4m3fn", torch.float8_e4m3fn)
    session, _ = open_torch(save_tiny("qwen3", tmp_path, num_hidden_layers=1), kit)
    assert {(kernel.part, kernel.name) for kernel in session.capabilities().kernels} >= {
        ("attention", "triton"),
        ("step", "table"),
    }
