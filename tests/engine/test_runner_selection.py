"""Which attention provider a model gets, and what is said of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tgi_backend_cpu.kit import CpuKit
from torch import Tensor

from tests.engine.tiny_models import silent
from tgi_core.backend import Kernel, OpenOptions, Unsupported
from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.checking import disagreement
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionLayer, AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.open_model import open_session
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.tiles import TileTable


class OddAttention(TorchAttention):
    """Plain torch, multiplied by a number, behind a check of its own."""

    name = "odd"

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def self_check(self, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device) -> str:
        """What the comparison finds."""
        return disagreement(self, layers, dtype, device)

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """Nearly attention."""
        return super().attend(query, cache, step, parameters) * self.factor


class GivenKit(CpuKit):
    """The CPU with attention providers of a test's choice."""

    def __init__(self, *providers: AttentionProvider) -> None:
        super().__init__(threads=1, memory_fraction=0.5)
        self.providers = providers

    def attention(self) -> Sequence[AttentionProvider]:
        """Those given."""
        return self.providers

    def table_refusal(self) -> str:
        """A table's attention is its own."""
        return "attention is to be chosen"


def chosen(folder: Path, *providers: AttentionProvider) -> Kernel:
    """What a session says of its attention."""
    session = open_session(OpenOptions(str(folder)), GivenKit(*providers), silent)
    return next(kernel for kernel in session.capabilities().kernels if kernel.part == "attention")


@pytest.mark.parametrize(("factor", "difference"), [(1.01, "0.01"), (torch.nan, "nan")])
def test_wrong_provider_is_passed_over(llama: Path, factor: float, difference: str) -> None:
    """A provider that fails its own check is passed over, and the session says by how much it was wrong."""
    kernel = chosen(llama, OddAttention(factor), TorchAttention())
    assert kernel == Kernel("attention", "torch", f"not odd: outputs differ from the reference by {difference} of their norm")


def test_right_provider_is_taken(llama: Path) -> None:
    """A provider that agrees with the reference is taken, and there is nothing to say of others."""
    assert chosen(llama, OddAttention(1.0), TorchAttention()) == Kernel("attention", "odd", "")


def test_triton_without_a_device(llama: Path) -> None:
    """Where Triton compiles for no device, the session says so and runs."""
    kernel = chosen(llama, TritonAttention(TileTable("none", 0, ()), 1), TorchAttention())
    assert kernel.name == "torch" and kernel.reason.startswith("not triton: triton compiles for no device here")


def test_nobody_is_left(llama: Path) -> None:
    """Where no provider can run, the refusal names what was wrong with each."""
    with pytest.raises(Unsupported, match=r"not odd: outputs differ"):
        open_session(OpenOptions(str(llama)), GivenKit(OddAttention(2.0)), silent)
