"""Experts by Triton's kernels, in its interpreter. `test_experts.py` runs this file in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import triton

from tests.engine.ahead.late import LateKit
from tests.engine.operator_checks import ACTIVATIONS, ROUTINGS, check_experts
from tests.engine.test_table_decoder import PLAN, TorchKit, check_exact
from tests.engine.tiny_models import expected_tokens, ragged_schedule, save_tiny, silent
from tests.triton.interpreted_attention import TILES
from tgi_core.backend import OpenOptions
from tgi_core.backend.session import Session
from tgi_core.engine.experts import ExpertsKernel, Routing
from tgi_core.engine.open_model import open_session
from tgi_core.engine.triton.grouped import TILES as GEMM_TILES
from tgi_core.engine.triton.grouped import choose_tile
from tgi_core.engine.triton.operators import TritonOperators
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.routing import CHUNK, launch_sort

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]

EVERY = os.environ.get("TGI_TRITON_MODELS") == "all"
"""Whether all models are run, each of which takes half a minute."""

DTYPES = (torch.float32, torch.float16)
"""The interpreter multiplies bfloat16 as integers."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", range(len(ROUTINGS)))
def test_experts(dtype: torch.dtype, kind: int) -> None:
    """Routers, experts, and their sum, for one token, and for so many that larger tiles are used."""
    routing, activation = ROUTINGS[kind], ACTIVATIONS[kind % 2]
    check_experts(TritonOperators(), dtype, routing, 1, activation)
    count = routing.experts + routing.shared
    for tile in GEMM_TILES[dtype.itemsize][: 3 if kind % 3 == 0 else 1]:
        tokens = tile.rows * count // routing.chosen
        assert choose_tile(tokens * routing.chosen, count, dtype.itemsize) == tile
        check_experts(TritonOperators(), dtype, routing, tokens, activation)


@pytest.mark.parametrize("choices", [1, 15, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
@pytest.mark.parametrize("rows", [16, 128])
def test_order(choices: int, rows: int) -> None:
    """Each expert's choices fill blocks that it owns, in order; nothing else does, and blocks that nobody needs have no owner."""
    generator = torch.Generator().manual_seed(choices)
    ids = torch.randint(0, 7, (choices, 1), generator=generator, dtype=torch.int32)
    ids[ids == 3] = 4
    found = launch_sort(ids, 9, rows)
    at = 0
    for expert in range(9):
        own = (ids.flatten() == expert).nonzero().flatten().tolist()
        needed = -(-len(own) // rows)
        assert found.owners[at : at + needed].tolist() == [expert] * needed
        assert found.order[at * rows : (at + needed) * rows].tolist() == own + [choices] * (needed * rows - len(own))
        at += needed
    assert at <= found.blocks and found.owners[at:].tolist() == [-1] * (found.blocks - at)


@pytest.mark.parametrize("routing", [Routing(4, 2, True), Routing(4, 2, True, sigmoid=True, groups=2)])
def test_logits_that_are_not_finite(routing: Routing) -> None:
    """Such a token still runs some expert, and what comes out is not finite; its neighbours are as they were."""
    operators = TritonOperators()
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    before = operators.route(logits, routing)
    logits[1, 2] = float("nan")
    chosen = operators.route(logits, routing)
    assert bool(((chosen.ids >= 0) & (chosen.ids < 4)).all()) and not bool(chosen.weights[1].isfinite().any())
    assert torch.equal(chosen.ids[::2], before.ids[::2]) and torch.equal(chosen.weights[::2], before.weights[::2])


@pytest.mark.parametrize("model_type", ["qwen2_moe", "gpt_oss", *(["mixtral", "qwen3_moe"] if EVERY else [])])
def test_tables_are_token_exact(model_type: str, tmp_path: Path) -> None:
    """One layer that runs from its table by these kernels, in chunks and beside others, makes the tokens of transformers' modules."""
    kit = TorchKit(TritonOperators())
    kit.provider = TritonAttention(TILES, 4)
    fields = {"layer_types": ["sliding_attention"]} if model_type == "gpt_oss" else {}
    check_exact(save_tiny(model_type, tmp_path, num_hidden_layers=1, **fields), kit)


class Kit(LateKit):
    """A device without a step of its own, and with a kernel of experts."""

    def experts(self) -> ExpertsKernel:
        """Triton's."""
        return TritonOperators()


@pytest.mark.parametrize("model_type", ["deepseek_v3", *(["gpt_oss"] if EVERY else [])])
def test_modules_are_token_exact(model_type: str, tmp_path: Path) -> None:
    """Inside transformers' modules the kernels run experts too, whatever the layout of their weights."""
    folder = save_tiny(model_type, tmp_path, num_hidden_layers=2)
    session = Session(open_session(OpenOptions(str(folder), dtype="float32"), Kit(None), silent), "late")
    assert ("experts", "triton") in {(kernel.part, kernel.name) for kernel in session.capabilities().kernels}
    made = ragged_schedule(session, session.warmup(PLAN, silent))
    for expected, id in zip(expected_tokens(folder), made, strict=True):
        assert made[id] and made[id] == expected[: len(made[id])]
