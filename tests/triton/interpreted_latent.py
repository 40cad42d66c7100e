"""Latent attention by Triton's kernels, in its interpreter. `test_latent.py` runs this file in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import triton

from tests.engine.latent_checks import SIZES, check_expand, check_latent_store, check_wide_linear
from tests.engine.test_latent_table import GROUPS, MSCALES, V2
from tests.engine.test_table_decoder import TorchKit, check_exact
from tests.engine.tiny_models import save_tiny
from tests.triton.interpreted_attention import TILES
from tgi_core.engine.decoder.latent import LatentSizes
from tgi_core.engine.triton.grouped import TILES as GEMM_TILES
from tgi_core.engine.triton.operators import TritonOperators
from tgi_core.engine.triton.provider import TritonAttention

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]

EVERY = os.environ.get("TGI_TRITON_MODELS") == "all"
"""Whether all models are run, each of which takes half a minute."""

DTYPES = (torch.float32, torch.float16)
"""The interpreter multiplies bfloat16 as integers."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "heads"), SIZES)
def test_latents(dtype: torch.dtype, sizes: LatentSizes, heads: int) -> None:
    """One kernel for as many tokens as a tile has, three for more tokens or other weights; then RoPE and the cache."""
    for tile in GEMM_TILES[dtype.itemsize]:
        check_expand(TritonOperators(), dtype, sizes, heads, tile.rows - 3)
    check_expand(TritonOperators(), dtype, sizes, heads, 129)
    check_expand(TritonOperators(), dtype, sizes, heads, 5, packed=True)
    check_latent_store(TritonOperators(), dtype, sizes, heads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_linear(dtype: torch.dtype) -> None:
    """The router's product, for few tokens and many."""
    for tokens in (1, 17, 70):
        check_wide_linear(TritonOperators(), dtype, tokens)


MODELS: list[tuple[str, dict[str, object]]] = [
    ("deepseek_v3", GROUPS | MSCALES | {"first_k_dense_replace": 1, "num_hidden_layers": 2}),
    ("deepseek_v2", GROUPS | V2 | {"q_lora_rank": None, "num_hidden_layers": 1, "first_k_dense_replace": 0}),
    *([("glm4_moe_lite", {"num_hidden_layers": 2}), ("youtu", {"num_hidden_layers": 1})] if EVERY else []),
]


@pytest.mark.parametrize(("model_type", "fields"), MODELS)
def test_tables_are_token_exact(model_type: str, fields: dict[str, object], tmp_path: Path) -> None:
    """Layers that run from their table by these kernels, in chunks and beside others, make the tokens of transformers' modules."""
    kit = TorchKit(TritonOperators())
    kit.provider = TritonAttention(TILES, 4)
    check_exact(save_tiny(model_type, tmp_path, **fields), kit)
