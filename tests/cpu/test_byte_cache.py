"""A KV cache in int8 or e4m3, in models that run from their table and module by module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tgi_backend_cpu.building import VARIANTS

from bench.accuracy import demo_prompts, errors, our_logits, transformers_logits
from tests.cpu.conftest import need
from tests.engine.tiny_models import PROMPTS, Schedule, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import Unsupported
from tgi_core.model_files import DEMO


@pytest.fixture(autouse=True)
def needs_kernels() -> None:
    """Only native kernels have such a cache."""
    need(*VARIANTS)


BOTH = pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn"])


@BOTH
@pytest.mark.parametrize(("model_type", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("gemma2", "float32")])
def test_a_model_over_it(model_type: str, dtype: str, stored: str, tmp_path: Path) -> None:
    """It says so, keeps 8 bits and two scales per head, and makes the same tokens in chunks and beside others as alone."""
    folder = save_tiny(model_type, tmp_path)
    found = []
    for cache in ("auto", stored):
        session, capacity = open_cpu(folder, dtype=dtype, cache_dtype=cache)
        told = [kernel.name for kernel in session.capabilities().kernels if kernel.part == "kv cache"]
        assert session.capabilities().cache_dtype == cache and told == ([cache] if cache != "auto" else [])
        sizes = {memory.name: memory.num_bytes for memory in capacity.memory}
        found.append(sizes["kv cache"] / capacity.groups[0].num_blocks)
    size, itemsize = 16, 4 if dtype == "float32" else 2
    assert found[1] / found[0] == (2 * size + 2 * 4) / (2 * size * itemsize)
    together = ragged_schedule(session, capacity)
    for (id, tokens), prompt in zip(together.items(), PROMPTS, strict=True):
        alone = Schedule(*open_cpu(folder, dtype=dtype, cache_dtype=stored))
        alone.step(alone.request(id, prompt, len(prompt)))
        while len(alone.tokens[id]) < len(tokens):
            alone.step()
        assert tokens and alone.tokens[id] == tokens


@pytest.mark.parametrize(("stored", "most", "other"), [("int8", 2, 0.02), ("float8_e4m3fn", 6, 0.04)])
def test_it_costs_little(stored: str, most: int, other: float) -> None:
    """The logits' errors are at most so many times those of bfloat16 alone, on the demo model, and few likeliest tokens are others. Floats
    of e4m3 have three bits after the first one; large integers have six."""
    prompts = demo_prompts(2, 96)
    truth = transformers_logits(DEMO, prompts, torch.float32)
    plain, narrow = (errors(our_logits(DEMO, prompts, "bfloat16", cache), truth) for cache in ("auto", stored))
    assert plain.rms < narrow.rms <= most * plain.rms and narrow.agreement >= plain.agreement - other


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    """With the flag, and what there is."""
    with pytest.raises(
        Unsupported,
        match="--kv-cache-dtype: the CPU does not support a cache in float8_e5m2; it supports int8 and float8_e4m3fn",
    ):
        open_cpu(save_tiny("llama", tmp_path), cache_dtype="float8_e5m2")
