"""Caches of numbers of 8 bits: what they hold, what they cost, and what a model makes over them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tgi_backend_cpu.kit import CpuKit

from tests.engine.test_runner_selection import GivenKit
from tests.engine.test_session import Schedule
from tests.engine.test_table_decoder import PLAN, PROMPTS, TorchKit
from tests.engine.tiny_models import silent
from tgi_core.backend import EMPTY, Capacity, OpenOptions, OutputOptions, Unsupported
from tgi_core.backend.session import Session
from tgi_core.engine.attention.cache import KVCacheDtype, LayerShape, cast_for_cache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.device import DeviceKit, attention_refusal
from tgi_core.engine.open_model import open_session

FP8 = KVCacheDtype("float8_e4m3fn", torch.float8_e4m3fn)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e4m3fnuz, 240.0)])
def test_too_great_numbers(dtype: torch.dtype, most: float) -> None:
    """What a type cannot hold becomes its greatest number, where a cast alone makes it none; what is no number stays none."""
    found = cast_for_cache(torch.tensor([1.0, 1e4, -math.inf, math.nan]), dtype).float()
    assert found[:3].tolist() == [1.0, most, -most] and found[3].isnan()


def opened(folder: Path, kit: DeviceKit) -> tuple[Session, Capacity]:
    """A warmed session on a checkpoint."""
    session = Session(open_session(OpenOptions(str(folder), dtype="float32"), kit, silent), "quantized")
    return session, session.warmup(PLAN, silent)


def logprobs(session: Session, capacity: Capacity) -> torch.Tensor:
    """Those of a prompt's tokens and of the one that follows."""
    request = Schedule(session, capacity).request(1, PROMPTS[2], len(PROMPTS[2]))
    rows = session.rows(session.prefill((replace(request, want=OutputOptions(prompt_logprobs=True)),), EMPTY, ())).rows
    return torch.tensor(rows[0].prompt_logprobs[1:] + rows[0].logprobs)


@pytest.mark.parametrize("by", ["table", "modules"])
def test_a_model_over_it(by: str, llama: Path) -> None:
    """It makes nearly what it makes over its own dtype, says what its cache is made of, and keeps a quarter of the bytes."""

    def kit() -> DeviceKit:
        return TorchKit() if by == "table" else GivenKit(TorchAttention())

    plain, quantized = kit(), kit()
    quantized.kv_cache_dtype = FP8
    found = []
    for each, name in ((plain, "auto"), (quantized, "float8_e4m3fn")):
        session, capacity = opened(llama, each)
        told = [kernel.name for kernel in session.capabilities().kernels if kernel.part == "kv cache"]
        assert session.capabilities().cache_dtype == name and told == ([name] if each is quantized else [])
        sizes = {memory.name: memory.num_bytes for memory in capacity.memory}
        found.append((logprobs(session, capacity), sizes["kv cache"] / capacity.groups[0].num_blocks))
    (expected, whole), (made, quarter) = found
    assert whole == 4 * quarter
    assert not torch.equal(made, expected) and torch.allclose(made, expected, atol=0.2, rtol=0.05)


def test_a_provider_without_it() -> None:
    """Native attention has no cache of 8 bits, and is passed over with that reason."""
    kit = CpuKit(1, 0.5)
    kit.kv_cache_dtype = FP8
    layers = [AttentionLayer(LayerShape(1, 16, 16), 2, AttentionParameters(0.25))]
    assert [attention_refusal(provider, layers, torch.float32, kit) for provider in kit.attention()] == [
        "no cache in float8_e4m3fn",
        "",
    ]


def test_a_backend_that_does_not_honour_it(llama: Path) -> None:
    """One that keeps its cache in the model's dtype all the same is not served: nothing that was asked for is left out silently."""
    session, _ = opened(llama, TorchKit())
    with pytest.raises(Unsupported, match="--kv-cache-dtype: keeps its cache in the dtype of the model, not in float8_e4m3fn"):
        session.check_cache_dtype("float8_e4m3fn")
