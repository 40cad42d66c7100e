"""Decoders that run from their table on torch: any device, plain operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.tiny_models import _scatter, expected_tokens, ragged_schedule, save_tiny, silent, tiny_config
from tgi_core.backend import Capacity, Kernel, OpenOptions, Progress, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.decoder.operators import Operators
from tgi_core.engine.decoder.paged import PagedDecoderRunner
from tgi_core.engine.decoder.table import FAMILIES
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import AttentionProvider, TableRunner
from tgi_core.engine.opening import open_session

PLAN = WarmupPlan(max_rows=4, max_row_tokens=64)


class TorchKit:
    """A device that has torch's operators and nothing of its own."""

    collectives = "gloo"
    device = torch.device("cpu")

    def __init__(self, *operators: Operators) -> None:
        self._operators = operators or (TorchOperators(),)

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """What is asked for."""
        return stored if asked == "auto" else getattr(torch, asked)

    def linear(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """No model runs module by module here."""
        raise AssertionError("the model did not run from its table")

    def attention(self) -> Sequence[AttentionProvider]:
        """Plain torch."""
        return (TorchAttention(),)

    def free_bytes(self) -> int:
        """A little."""
        return 1 << 30

    def default_rows(self) -> int:
        """A few."""
        return 8

    def default_step_tokens(self) -> int:
        """Some."""
        return 256

    def choices(self) -> tuple[Kernel, ...]:
        """None."""
        return ()

    def table_refusal(self) -> str:
        """It runs every table."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The runner under test."""
        return PagedDecoderRunner(self, weights, self._operators, progress)


def open_torch(folder: Path, kit: TorchKit | None = None, dtype: str = "float32") -> tuple[Session, Capacity]:
    """A warmed session on a checkpoint."""
    session = Session(open_session(OpenOptions(str(folder), dtype=dtype), kit or TorchKit(), silent), "torch")
    return session, session.warmup(PLAN, silent)


def check_exact(folder: Path) -> None:
    """The schedule's tokens are those of `generate`, and the model runs from its table."""
    session, capacity = open_torch(folder)
    names = {kernel.part: kernel.name for kernel in session.capabilities().kernels}
    assert names["step"] == "table" and names["operators"] == names["attention"] == "torch"
    made = ragged_schedule(session, capacity)
    for expected, id in zip(expected_tokens(folder), made, strict=True):
        assert made[id] and made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) & set(CONFIG_MAPPING)))
def test_family_is_token_exact(model_type: str, tmp_path: Path) -> None:
    """In float32 each type makes transformers' own greedy tokens: in chunks, in steps mixed of prefill and decode, within windows."""
    check_exact(save_tiny(model_type, tmp_path))
