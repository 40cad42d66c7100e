"""The operations of a decoder's step in torch's own operators."""

from __future__ import annotations

import pytest
import torch

from tests.engine.latent_checks import SIZES, check_expand, check_latent_store, check_wide_linear
from tests.engine.operator_checks import (
    ACTIVATIONS,
    DTYPES,
    HEADS,
    ROUTINGS,
    WIDTHS,
    check_experts,
    check_norms,
    check_silu_mul,
    check_store,
)
from tgi_core.engine.decoder.latent import LatentSizes
from tgi_core.engine.decoder.operators import HeadSizes
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.experts import Activation, Routing


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows(dtype: torch.dtype, width: int) -> None:
    """Norms and the gated activation, to the last bit or two, for any width and dtype."""
    check_norms(TorchOperators(), dtype, width)
    check_silu_mul(TorchOperators(), dtype, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "turned"), HEADS)
@pytest.mark.parametrize("with_norms", [False, True])
def test_store(dtype: torch.dtype, sizes: HeadSizes, turned: int, with_norms: bool) -> None:
    """Heads turned whole, in part or not at all, with norms and without."""
    check_store(TorchOperators(), dtype, sizes, turned, with_norms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_experts(dtype: torch.dtype, routing: Routing, activation: Activation) -> None:
    """Routers, experts, and their sum."""
    check_experts(TorchOperators(), dtype, routing, 6, activation)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "heads"), SIZES)
def test_latents(dtype: torch.dtype, sizes: LatentSizes, heads: int) -> None:
    """Norms and projections of latents, and what they become in the cache."""
    check_expand(TorchOperators(), dtype, sizes, heads, 6)
    check_latent_store(TorchOperators(), dtype, sizes, heads)
    check_wide_linear(TorchOperators(), dtype, 6)
