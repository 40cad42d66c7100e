"""GEMMs over the tile unit, which is emulated where the processor has none."""

from __future__ import annotations

import pytest
import torch
from tgi_backend_cpu.building import EMULATED, VARIANTS, Variant
from tgi_backend_cpu.interface import Layout, Panels
from tgi_backend_cpu.kernels import Arena, Kernels
from tgi_backend_cpu.packing import pack
from torch import Tensor

from tests.cpu.conftest import kernels_of
from tests.cpu.test_gemm import codes, floats8, levels, numbers, run, wild
from tgi_core.engine.quantization.weight import Dense, Weight

AMX = VARIANTS[0]
DEEP = 1344
"""Inputs: more than stay in the first cache while all rows pass by, and no multiple of a part."""


@pytest.fixture(params=[AMX, EMULATED], ids=lambda variant: variant.name)
def tiles(request: pytest.FixtureRequest) -> Kernels:
    """The hardware's unit, where there is one, and the emulated one."""
    variant: Variant = request.param
    return kernels_of(variant)


def linear(kernels: Kernels, weight: Weight, x: Tensor) -> Tensor:
    """x · Wᵀ in bfloat16."""
    arena = Arena(kernels)
    return run(kernels, "tgi_linear", pack(kernels, arena, [weight]), x, weight.shape[0])


def as_documented(x: Tensor, weight: Tensor) -> Tensor:
    """The product as Intel's manual has it: 32 inputs at a time, even and odd ones in chains of fused multiply-adds, joined, then
    added. The numbers must be of similar sizes, so that a sum of two is exact in float64 before it is rounded."""
    total = torch.zeros(x.shape[0], weight.shape[0])
    for first in range(0, x.shape[1], 32):
        halves = torch.zeros(2, *total.shape)
        for k in range(first, min(first + 32, x.shape[1])):
            product = x[:, k, None].double() * weight[:, k].double()
            halves[k % 2] = (halves[k % 2].double() + product).float()
        total += halves[0] + halves[1]
    return total.bfloat16()


def test_sums_are_those_of_the_manual(tiles: Kernels) -> None:
    """Bit for bit, also where nearly all of a sum cancels out, so that the order of additions shows."""
    for depth in (2, 30, 32, 34, 160):
        x, weight = numbers(21, depth, dtype=torch.bfloat16, seed=depth), numbers(48, depth, dtype=torch.bfloat16, seed=depth + 1)
        x[:, depth // 2 :] = -x[:, : depth - depth // 2].flip(1)
        weight[:, depth // 2 :] = weight[:, : depth - depth // 2].flip(1)
        assert torch.equal(linear(tiles, Dense.of(weight), x), as_documented(x, weight)), depth


def test_denormal_numbers_are_zero(tiles: Kernels) -> None:
    """As operands and as results; normal ones beside them are not."""
    x, weight = torch.zeros(2, 32, dtype=torch.bfloat16), torch.zeros(16, 32, dtype=torch.bfloat16)
    x[0, 0], x[1, 0] = 2.0**-64, 2.0**-130
    weight[:8, 0], weight[8:, 0] = 2.0**-66, 2.0**-60
    found = linear(tiles, Dense.of(weight), x)
    assert found[0].tolist() == [0.0] * 8 + [2.0**-124] * 8 and not found[1].any()


@pytest.mark.parametrize("kind", ["plain", "12-bit", "4-bit", "8-bit", "8-bit floats", "levels"])
def test_close_to_exact_sums_and_equal_for_any_batch(tiles: Kernels, kind: str) -> None:
    """The error is at most that of rounding the result to bfloat16, plus that of depth / 32 + 18 additions in float32. A row's bits are the
    same alone, in a tile, in several passes and in several blocks of rows."""
    weight: Weight = Dense.of(numbers(80, DEEP, dtype=torch.bfloat16, seed=1))
    if kind == "plain":
        weight = Dense.of(torch.cat([weight.dequantize(), wild(80, DEEP, seed=2)]))
    elif kind in ("8-bit floats", "levels"):
        weight = (floats8 if kind == "8-bit floats" else levels)(80, DEEP, 12, seed=3)
    elif kind != "12-bit":
        weight = codes(80, DEEP, 12, int(kind[0]), True, seed=3)  # groups of 112, which fill no tile
    coded = {"4-bit": Layout.CODES4, "8-bit": Layout.CODES8, "8-bit floats": Layout.E4M3, "levels": Layout.LEVELS}
    assert pack(tiles, Arena(tiles), [weight]).layout == ({"plain": Layout.DENSE, "12-bit": Layout.BF12} | coded)[kind]
    x = numbers(150, DEEP, dtype=torch.bfloat16, seed=4)
    found = linear(tiles, weight, x)
    if kind in ("plain", "12-bit"):
        exact = x.double() @ weight.dequantize().double().T
        sizes = x.double().abs() @ weight.dequantize().double().abs().T
        assert ((found.double() - exact).abs() <= exact.abs() * 2.0**-8 + sizes * (DEEP / 32 + 18) * 2.0**-24).all()
    for first, last in ((0, 1), (149, 150), (3, 19), (5, 37), (20, 85)):
        assert torch.equal(linear(tiles, weight, x[first:last].clone()), found[first:last]), (first, last)


def test_what_is_no_number_stays_in_its_row_and_column(tiles: Kernels) -> None:
    """NaN in a row, and infinities in what lies behind a weight's last inputs, reach no other result."""
    x, weight = numbers(40, 34, dtype=torch.bfloat16, seed=1), numbers(96, 34, dtype=torch.bfloat16, seed=2)
    wanted = linear(tiles, Dense.of(weight), x)
    x[7], weight[40:] = float("nan"), float("inf")
    found = linear(tiles, Dense.of(weight), x)
    assert found[7].isnan().all()
    keep = torch.arange(40) != 7
    assert torch.equal(found[keep, :40], wanted[keep, :40]) and not found[keep][:, 40:].isfinite().any()


def test_pairs_of_few_columns(tiles: Kernels) -> None:
    """Gates and ups that fill no tile."""
    gate, up, x = (numbers(rows, 70, dtype=torch.bfloat16, seed=rows) / 4 for rows in (8, 9, 33))
    up = up[:8]
    arena = Arena(tiles)
    found = run(tiles, "tgi_gated", pack(tiles, arena, [Dense.of(gate), Dense.of(up)], None, Panels.PAIRS), x, 8)
    product = x.double() @ gate.double().T
    wanted = product * product.sigmoid() * (x.double() @ up.double().T)
    assert ((found.double() - wanted).abs() <= wanted.abs() * 2.0**-8 + 1e-5).all()
