"""Native matrix products against float64."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tgi_backend_cpu.interface import Layout, Linear, Panels
from tgi_backend_cpu.kernels import Arena, Kernels
from tgi_backend_cpu.packing import codes as code_packing
from tgi_backend_cpu.packing import pack
from torch import Tensor

from tgi_core.engine.quantization.weight import Affine, Dense, Grouped, Levels, Scaled

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 2, 1), (3, 16, 16), (5, 64, 48), (8, 98, 130), (13, 576, 96), (25, 34, 200), (70, 128, 64), (1000, 96, 80)]
"""(rows, depth, columns): tails of panels, of lanes, of register blocks and of cache blocks."""


def run(kernels: Kernels, name: str, linear: Linear, x: Tensor, columns: int) -> Tensor:
    """Call a product."""
    y = torch.full((x.shape[0], columns), float("nan"), dtype=x.dtype)
    is_bf16 = int(x.dtype is torch.bfloat16)
    getattr(kernels.call, name)(kernels.pool, is_bf16, ctypes.byref(linear), x.data_ptr(), y.data_ptr(), x.shape[0])
    return y


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Random numbers of a dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, wanted: Tensor) -> bool:
    """Equal to the rounding of the dtype, by the size of the whole."""
    limit = 2e-6 if found.dtype is torch.float32 else 8e-3
    return bool((found.double() - wanted).abs().max() <= limit * wanted.abs().max().clamp_min(1.0))


def packed(
    kernels: Kernels, arena: Arena, matrices: list[Tensor], bias: Tensor | None = None, panels: Panels = Panels.PLAIN
) -> Linear:
    """Matrices packed as dense weights."""
    return pack(kernels, arena, [Dense.of(matrix) for matrix in matrices], bias, panels)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(kernels: Kernels, dtype: torch.dtype, bias: bool) -> None:
    """x · Wᵀ + b for shapes that fill nothing evenly."""
    for seed, (rows, depth, columns) in enumerate(SHAPES):
        weight, x = numbers(columns, depth, dtype=dtype, seed=seed), numbers(rows, depth, dtype=dtype, seed=seed + 100)
        offset = torch.randn(columns) if bias else None
        arena = Arena(kernels)
        found = run(kernels, "tgi_linear", packed(kernels, arena, [weight], offset), x, columns)
        wanted = x.double() @ weight.double().T + (0 if offset is None else offset.double())
        assert close(found, wanted), (rows, depth, columns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_merged(kernels: Kernels, dtype: torch.dtype) -> None:
    """Weights one below the other, as queries, keys and values are."""
    weights = [numbers(size, 64, dtype=dtype, seed=size) for size in (48, 16, 32)]
    x, arena = numbers(7, 64, dtype=dtype, seed=1), Arena(kernels)
    found = run(kernels, "tgi_linear", packed(kernels, arena, weights), x, 96)
    assert close(found, x.double() @ torch.cat(weights).double().T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inner", [16, 40, 96])
def test_gated(kernels: Kernels, dtype: torch.dtype, inner: int) -> None:
    """silu(gate) · up in one go, for inner sizes that are no multiple of 16 as well."""
    gate, up = (numbers(inner, 64, dtype=dtype, seed=seed) / 4 for seed in (1, 2))
    for rows in (1, 2, 11, 12, 13, 40):
        x, arena = numbers(rows, 64, dtype=dtype, seed=rows), Arena(kernels)
        found = run(kernels, "tgi_gated", packed(kernels, arena, [gate, up], panels=Panels.PAIRS), x, inner)
        product = x.double() @ gate.double().T
        assert close(found, product * product.sigmoid() * (x.double() @ up.double().T))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_the_batch(kernels: Kernels, dtype: torch.dtype) -> None:
    """A row's result is the same whichever rows stand beside it."""
    weight, x, arena = numbers(112, 130, dtype=dtype, seed=1), numbers(61, 130, dtype=dtype, seed=2), Arena(kernels)
    plain, gated = (
        packed(kernels, arena, [weight]),
        packed(kernels, arena, [weight[:48].clone(), weight[48:96].clone()], panels=Panels.PAIRS),
    )
    for name, linear, columns in (("tgi_linear", plain, 112), ("tgi_gated", gated, 48)):
        whole = run(kernels, name, linear, x, columns)
        for first, last in ((0, 1), (60, 61), (3, 5), (7, 30), (0, 60)):
            assert torch.equal(run(kernels, name, linear, x[first:last].clone(), columns), whole[first:last])


def wild(rows: int, depth: int, seed: int) -> Tensor:
    """bfloat16 numbers of all exponents, from 2^-100 to 2^20."""
    exponents = torch.randint(-100, 20, (rows, depth), generator=torch.Generator().manual_seed(seed))
    return torch.ldexp(numbers(rows, depth, dtype=torch.float32, seed=seed), exponents).bfloat16()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 60),
    depth=st.integers(1, 120).map(lambda half: 2 * half),
    columns=st.integers(1, 12).map(lambda blocks: 16 * blocks),
    outliers=st.sampled_from([0.0, 0.003]),
    seed=st.integers(0, 1 << 20),
)
@example(rows=1, depth=10, columns=192, outliers=0.003, seed=1)
@example(rows=33, depth=10, columns=192, outliers=0.0, seed=2)
def test_bf12_weights_lose_nothing(kernels: Kernels, rows: int, depth: int, columns: int, outliers: float, seed: int) -> None:
    """Weights in twelve bits give the same bits as whole ones, which those are that stand beside numbers of all exponents."""
    x, weight, other = (
        numbers(rows, depth, dtype=torch.bfloat16, seed=seed),
        numbers(columns, depth, dtype=torch.bfloat16, seed=seed + 1),
        wild(columns, depth, seed),
    )
    strange = torch.rand(columns, depth, generator=torch.Generator().manual_seed(seed)) < outliers
    weight[strange] = torch.where(other[strange].abs() < 1, other[strange], 0)
    arena = Arena(kernels)
    bf12, whole = packed(kernels, arena, [weight]), packed(kernels, arena, [weight, other])
    assert whole.layout == Layout.DENSE
    assert torch.equal(
        run(kernels, "tgi_linear", bf12, x, columns), run(kernels, "tgi_linear", whole, x, 2 * columns)[:, :columns]
    )
    bf12 = packed(kernels, arena, [weight, weight / 2], panels=Panels.PAIRS)
    whole = packed(kernels, arena, [torch.cat([weight, other]), torch.cat([weight / 2, other])], panels=Panels.PAIRS)
    assert torch.equal(run(kernels, "tgi_gated", bf12, x, columns), run(kernels, "tgi_gated", whole, x, 2 * columns)[:, :columns])


def codes(rows: int, depth: int, groups: int, bits: int, zeros: bool, seed: int) -> Scaled:
    """Integers of so many bits, with scales and maybe zero points."""
    generator, half = torch.Generator().manual_seed(seed), 1 << (bits - 1)
    found = [torch.randint(-half, half, (rows, depth), generator=generator).to(torch.int8)]
    found.append(torch.randn(rows, groups, generator=generator) / half)
    if zeros:
        found.append(torch.randint(-half, half, (rows, groups), generator=generator).to(torch.int8))
    return Scaled(found, torch.bfloat16)


def floats8(rows: int, depth: int, groups: int, seed: int) -> Scaled:
    """Floats of e4m3, all but NaN, with scales."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (rows, depth), generator=generator, dtype=torch.uint8)
    bits[bits & 0x7F == 0x7F] = 1
    return Scaled((bits.view(torch.float8_e4m3fn), torch.randn(rows, groups, generator=generator) / 256), torch.bfloat16)


def levels(rows: int, depth: int, groups: int, seed: int) -> Levels:
    """Indices into a codebook of numbers that bfloat16 holds, with scales."""
    generator = torch.Generator().manual_seed(seed)
    book = torch.randn(16, generator=torch.Generator().manual_seed(0)).bfloat16()
    places = torch.randint(0, 16, (rows, depth), generator=generator, dtype=torch.uint8)
    return Levels((places, torch.randn(rows, groups, generator=generator)), torch.bfloat16, tuple(book.tolist()))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 40),
    shape=st.sampled_from([(1, 6), (1, 64), (1, 130), (2, 8), (3, 16), (4, 24), (2, 128), (5, 32)]),
    columns=st.integers(1, 12).map(lambda blocks: 16 * blocks),
    bits=st.sampled_from([4, 8]),
    kind=st.sampled_from(["scales", "zero points", "offsets", "floats", "levels"]),
    seed=st.integers(0, 1 << 20),
)
def test_codes_are_multiplied_as_their_numbers(
    kernels: Kernels, rounds_weights: bool, rows: int, shape: tuple[int, int], columns: int, bits: int, kind: str, seed: int
) -> None:
    """Weights of codes are not rounded, but in groups for the tile unit: merged, in pairs, in groups of several sizes. The other rows do
    not matter."""
    groups, size = shape
    one, other = (coded(columns, groups * size, groups, bits, kind, seed + place) for place in (0, 1))
    x, arena = numbers(rows, groups * size, dtype=torch.bfloat16, seed=seed), Arena(kernels)
    for name, panels, wide in (("tgi_linear", Panels.PLAIN, 2 * columns), ("tgi_gated", Panels.PAIRS, columns)):
        found = pack(kernels, arena, [one, other], None, panels)
        kinds = {"floats": Layout.E4M3, "levels": Layout.LEVELS}
        assert found.layout == kinds.get(kind, Layout.CODES4 if bits == 4 else Layout.CODES8)
        matrices = [numbers_of(one), numbers_of(other)]
        if rounds_weights and groups > 1:
            matrices = [matrix.bfloat16().double() for matrix in matrices]
        if panels is Panels.PLAIN:
            wanted = x.double() @ torch.cat(matrices).T
        else:
            gate = x.double() @ matrices[0].T
            wanted = gate * gate.sigmoid() * (x.double() @ matrices[1].T)
        made = run(kernels, name, found, x, wide)
        assert close(made, wanted)
        for first in range(0, rows, 9):
            some = x[first : first + 9].clone()
            assert torch.equal(run(kernels, name, found, some, wide), made[first : first + 9])


def coded(rows: int, depth: int, groups: int, bits: int, kind: str, seed: int) -> Grouped:
    """The same, or unsigned ones with scales and offsets, or floats or levels."""
    if kind in ("floats", "levels"):
        return (floats8 if kind == "floats" else levels)(rows, depth, groups, seed)
    found = codes(rows, depth, groups, bits, kind == "zero points", seed)
    if kind != "offsets":
        return found
    unsigned = (found.parts[0].to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)
    offsets = torch.randn(rows, groups, generator=torch.Generator().manual_seed(seed + 1))
    return Affine((unsigned, found.parts[1], offsets), torch.bfloat16)


def numbers_of(weight: Grouped) -> Tensor:
    """The numbers that codes stand for, not rounded."""
    codes, scales, *others = (part.double() for part in weight.parts)
    if isinstance(weight, Levels):
        codes = torch.tensor(weight.levels, dtype=torch.float64)[codes.long()]
    plain, other = codes.unflatten(1, (scales.shape[1], -1)), (others[0].unsqueeze(-1) if others else 0)
    if isinstance(weight, Affine):
        return (plain * scales.unsqueeze(-1) + other).flatten(1)
    return ((plain - other) * scales.unsqueeze(-1)).flatten(1)


def sizes_of(weight: Grouped) -> Tensor:
    """Magnitudes of what is added up to the numbers."""
    codes, scales, *others = (part.double().abs() for part in weight.parts)
    other = 0 if not others else others[0] if isinstance(weight, Affine) else others[0] * scales
    return (codes.unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(-1) + (torch.as_tensor(other).unsqueeze(-1))).flatten(1)


def test_merged_weights_of_different_codes(kernels: Kernels) -> None:
    """Weights with offsets in groups of 32 beside others of 16, of four bits and of eight, as llama.cpp's Q4_K_M has them, stay codes."""
    weights = [coded(48, 256, 8, 4, "offsets", 1), coded(16, 256, 8, 4, "zero points", 2), coded(32, 256, 16, 8, "scales", 3)]
    x, arena = numbers(37, 256, dtype=torch.bfloat16, seed=4), Arena(kernels)
    found = pack(kernels, arena, weights)
    assert found.layout == Layout.CODES8
    made = run(kernels, "tgi_linear", found, x, 96)
    assert close(made, x.double() @ torch.cat([numbers_of(weight) for weight in weights]).T)
    assert torch.equal(run(kernels, "tgi_linear", found, x[5:7].clone(), 96), made[5:7])
    assert pack(kernels, arena, weights[:2]).layout == Layout.CODES4


def test_zero_points_that_are_no_codes(kernels: Kernels) -> None:
    """Fractions and numbers out of range, as HQQ makes them, are not rounded."""
    codes_, scales = codes(48, 128, 4, 4, False, 1).parts
    zeros = torch.rand(48, 4, generator=torch.Generator().manual_seed(2)) * 24 - 12
    weight, x = Scaled((codes_, scales, zeros), torch.bfloat16), numbers(9, 128, dtype=torch.bfloat16, seed=3)
    arena = Arena(kernels)
    found = pack(kernels, arena, [weight])
    assert found.layout == Layout.CODES4
    assert close(run(kernels, "tgi_linear", found, x, 48), x.double() @ numbers_of(weight).T)


def test_codes_take_their_bits(kernels: Kernels) -> None:
    """Four or eight bits and the scales; groups of odd sizes become dense numbers."""
    for bits, groups, most in ((4, 1, 0.51), (4, 18, 0.63), (8, 1, 1.02), (8, 18, 1.13)):
        arena = Arena(kernels)
        pack(kernels, arena, [codes(480, 576, groups, bits, False, 1)])
        assert arena.num_bytes <= most * 480 * 576 + 4096
    arena = Arena(kernels)
    pack(kernels, arena, [floats8(480, 576, 1, 1)])
    assert arena.num_bytes <= 1.02 * 480 * 576 + 4096
    arena = Arena(kernels)
    pack(kernels, arena, [levels(480, 576, 9, 1)])
    assert arena.num_bytes <= 0.57 * 480 * 576 + 4096
    arena = Arena(kernels)
    for weights in ([codes(48, 96, 32, 8, False, 1)], [codes(48, 96, 2, 8, False, 1), codes(48, 96, 8, 8, False, 1)]):
        assert pack(kernels, arena, weights).layout not in (Layout.CODES4, Layout.CODES8)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", ["scales", "zero points", "offsets", "floats", "levels"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_large_weight_is_packed_in_pieces(
    kernels: Kernels, bits: int, kind: str, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few panels at a time, to the bytes that they have when all are packed at once."""
    monkeypatch.setattr(kernels, "int8_rows", rounds)
    weight, found = coded(500, 64, 2, bits, kind, 1), []
    for piece in (code_packing._PIECE, 3 * 64 * 64):
        monkeypatch.setattr(code_packing, "_PIECE", piece)
        arena = Arena(kernels)
        found.append(ctypes.string_at(pack(kernels, arena, [weight]).data, arena.num_bytes))
    assert found[0] == found[1] and any(found[0])


def test_levels_of_other_codebooks(kernels: Kernels) -> None:
    """Merged, they become dense numbers."""
    one, arena = levels(48, 96, 3, 1), Arena(kernels)
    other = Levels(one.parts, one.dtype, tuple(-level for level in one.levels))
    assert pack(kernels, arena, [one, one]).layout == Layout.LEVELS
    found = pack(kernels, arena, [one, other])
    assert found.layout not in (Layout.LEVELS, Layout.CODES4)
    x = numbers(5, 96, dtype=torch.bfloat16, seed=2)
    assert close(
        run(kernels, "tgi_linear", found, x, 96), x.double() @ torch.cat([one.dequantize(), other.dequantize()]).double().T
    )


def test_every_float_of_eight_bits_is_exact(kernels: Kernels) -> None:
    """Normal numbers, subnormal ones and both zeros. A weight with NaN is kept as dense numbers, so that it shows."""
    bits = torch.arange(256, dtype=torch.uint8)
    bits = bits[bits & 0x7F != 0x7F].repeat(48, 2)[:, :504].contiguous()
    weight, arena = Scaled((bits.view(torch.float8_e4m3fn), torch.ones(48, 1)), torch.bfloat16), Arena(kernels)
    for rows in (1, 504):
        x = torch.eye(504, dtype=torch.bfloat16)[:rows].clone()
        found = run(kernels, "tgi_linear", pack(kernels, arena, [weight]), x, 48)
        assert torch.equal(found, weight.parts[0].to(torch.bfloat16).T[:rows])
    bits[7, 9] = 0x7F
    found = run(kernels, "tgi_linear", pack(kernels, arena, [weight]), torch.ones(1, 504, dtype=torch.bfloat16), 48)
    assert found[0].isnan().nonzero().tolist() == [[7]]


def test_weights_take_twelve_bits_where_that_saves_memory(kernels: Kernels) -> None:
    """Numbers of a few sizes do, numbers of all sizes and float32 don't."""
    arena = Arena(kernels)
    assert packed(kernels, arena, [numbers(480, 576, dtype=torch.bfloat16, seed=1)]).layout == Layout.BF12
    assert arena.num_bytes <= 0.77 * 480 * 576 * 2
    for weight in (wild(480, 576, seed=1), numbers(480, 576, dtype=torch.float32, seed=1)):
        arena = Arena(kernels)
        assert packed(kernels, arena, [weight]).layout == Layout.DENSE
        assert arena.num_bytes == weight.nbytes


def test_weights_that_cannot_be_packed(kernels: Kernels) -> None:
    """Weights of different dtypes, or with a part of a block before another weight, are refused."""
    arena = Arena(kernels)
    with pytest.raises(ValueError, match="16 rows"):
        packed(kernels, arena, [torch.zeros(8, 16), torch.zeros(16, 16)])
    with pytest.raises(ValueError, match="dtype"):
        packed(kernels, arena, [torch.zeros(16, 16), torch.zeros(16, 16, dtype=torch.bfloat16)])


def test_callers_take_turns(kernels: Kernels) -> None:
    """Two threads that use one pool at a time each get their own results."""
    weight, x, arena = numbers(96, 64, dtype=torch.float32, seed=1), numbers(20, 64, dtype=torch.float32, seed=2), Arena(kernels)
    linear = packed(kernels, arena, [weight])
    inputs = [x * factor for factor in range(1, 9)]
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda own: [run(kernels, "tgi_linear", linear, own, 96) for _ in range(20)], inputs))
    assert all(close(y, own.double() @ weight.double().T) for own, results in zip(inputs, found, strict=True) for y in results)
