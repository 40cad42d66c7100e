"""GEMMs of weights of eight or four bits with rows that are rounded to eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tgi_backend_cpu.building import CHOICE, EMULATED, VARIANTS, Variant
from tgi_backend_cpu.choosing import INT8_ROWS
from tgi_backend_cpu.interface import Layout, Panels
from tgi_backend_cpu.kernels import Arena, Kernels
from tgi_backend_cpu.packing import pack
from torch import Tensor

from tests.cpu.conftest import kernels_of
from tests.cpu.test_gemm import coded, codes, numbers, numbers_of, run, sizes_of
from tests.engine.tiny_models import PROMPTS, Schedule, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import Feature
from tgi_core.engine.quantization.weight import Scaled, Weight


@pytest.fixture
def rounding(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Kernels that round rows."""
    monkeypatch.setattr(kernels, "int8_rows", True)
    return kernels


def product(kernels: Kernels, weights: Sequence[Weight], x: Tensor, panels: Panels = Panels.PLAIN) -> Tensor:
    """x · Wᵀ, or silu(gate) · up."""
    arena = Arena(kernels)
    linear = pack(kernels, arena, weights, None, panels)
    assert linear.layout in (Layout.INT4, Layout.INT8)
    paired = panels is Panels.PAIRS
    width = weights[0].shape[0] if paired else sum(weight.shape[0] for weight in weights)
    return run(kernels, "tgi_gated" if paired else "tgi_linear", linear, x, width)


def rounded(x: Tensor, group: int) -> Tensor:
    """Rows as integers of eight bits with a scale per group, [rows][inputs], in float64."""
    parts = []
    for part in x.float().split(group, 1):
        top = part.abs().amax(1, keepdim=True)
        most = torch.full_like(top, 127)
        parts.append((part * (most / top)).round().double() * (top / most).double())
    return torch.cat(parts, 1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    shape=st.sampled_from([(1, 6), (1, 128), (1, 130), (1, 600), (2, 8), (3, 24), (2, 128), (5, 32)]),
    columns=st.integers(1, 8).map(lambda blocks: 16 * blocks),
    bits=st.sampled_from([4, 8]),
    kind=st.sampled_from(["scales", "zero points", "offsets"]),
    seed=st.integers(0, 1 << 20),
)
def test_integers_are_multiplied_exactly(
    rounding: Kernels, rows: int, shape: tuple[int, int], columns: int, bits: int, kind: str, seed: int
) -> None:
    """The result is that of the rounded rows, to float32's precision and bfloat16's last place; merged and in pairs. The other rows do not
    matter."""
    groups, size = shape
    one, other = (coded(columns, groups * size, groups, bits, kind, seed + place) for place in (0, 1))
    x = numbers(rows, groups * size, dtype=torch.bfloat16, seed=seed)
    exact = rounded(x, size * max(1, 128 // size) if groups > 1 else 128)
    found = product(rounding, [one, other], x)
    wanted = exact @ torch.cat([numbers_of(one), numbers_of(other)]).T
    sizes = exact.abs() @ torch.cat([sizes_of(one), sizes_of(other)]).T
    assert ((found.double() - wanted).abs() <= wanted.abs() * 2.0**-8 + sizes * 1e-6).all()
    gated = product(rounding, [one, other], x, Panels.PAIRS)
    for first in range(0, rows, 9):
        some = x[first : first + 9].clone()
        assert torch.equal(product(rounding, [one, other], some), found[first : first + 9])
        assert torch.equal(product(rounding, [one, other], some, Panels.PAIRS), gated[first : first + 9])


@pytest.mark.parametrize("variant", [*VARIANTS, EMULATED], ids=lambda variant: variant.name)
@pytest.mark.parametrize("groups", [1, 5, 20])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["scales", "offsets"])
def test_tiles_and_vectors_agree_to_the_bit(
    variant: Variant, groups: int, bits: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every instruction set gives the bits of AVX2, for few rows and many."""
    kernels, plain = kernels_of(variant), kernels_of(VARIANTS[-1])
    weight, x = coded(112, 640, groups, bits, kind, 1), numbers(75, 640, dtype=torch.bfloat16, seed=2)
    for own in (kernels, plain):
        monkeypatch.setattr(own, "int8_rows", True)
    for rows in (1, 4, 5, 11, 17, 40, 75):
        assert torch.equal(product(kernels, [weight], x[:rows].clone()), product(plain, [weight], x[:rows].clone()))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["scales", "zero points", "offsets"])
def test_rounding_costs_little(rounding: Kernels, bits: int, kind: str) -> None:
    """Against rows that are not rounded the error of normal numbers is below one percent of the result's size."""
    weight, x = coded(96, 1024, 8, bits, kind, 1), numbers(33, 1024, dtype=torch.bfloat16, seed=2)
    exact = x.double() @ numbers_of(weight).T
    assert (product(rounding, [weight], x).double() - exact).norm() < 0.01 * exact.norm()


def test_extreme_codes_do_not_overflow(rounding: Kernels) -> None:
    """Rows of the largest integer, times the largest and the smallest codes."""
    x = torch.ones(3, 512, dtype=torch.bfloat16)
    for code in (-128, 127, -8, 7):
        weight = Scaled((torch.full((32, 512), code, dtype=torch.int8), torch.ones(32, 2)), torch.bfloat16)
        assert torch.equal(product(rounding, [weight], x), torch.full((3, 32), 512.0 * code).bfloat16())


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_no_number_shows_in_its_row(rounding: Kernels, bits: int) -> None:
    """A row with NaN or an infinity is NaN; zeros are zeros; other rows are as before."""
    weight, x = codes(48, 256, 1, bits, True, 1), numbers(20, 256, dtype=torch.bfloat16, seed=2)
    before = product(rounding, [weight], x)
    x[3, 100], x[7, 255], x[11] = float("nan"), float("-inf"), 0
    found = product(rounding, [weight], x)
    assert found[3].isnan().all() and found[7].isnan().all() and not found[11].any()
    keep = [row for row in range(20) if row not in (3, 7, 11)]
    assert torch.equal(found[keep], before[keep])


def test_rows_are_rounded_only_if_asked(kernels: Kernels) -> None:
    """Not without the setting."""
    for bits, layout in ((8, Layout.CODES8), (4, Layout.CODES4)):
        assert pack(kernels, Arena(kernels), [codes(32, 64, 1, bits, False, 1)]).layout == layout


@pytest.mark.parametrize("variant", [*VARIANTS, EMULATED], ids=lambda variant: variant.name)
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_model_runs_in_eight_bits(variant: Variant, quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--quantize` the fused step rounds rows, and makes the same tokens in chunks and beside others as alone."""
    kernels_of(variant)
    monkeypatch.setenv(CHOICE, variant.name)
    monkeypatch.setenv(INT8_ROWS, "1")
    folder = save_tiny("llama", tmp_path)
    session, capacity = open_cpu(folder, dtype="bfloat16", quantize=quantize)
    assert "times rows of 8 bits" in str(session.capabilities()) and Feature.BATCH_INVARIANT in session.capabilities().features
    together = ragged_schedule(session, capacity)
    for (id, tokens), prompt in zip(together.items(), PROMPTS, strict=True):
        alone = Schedule(*open_cpu(folder, dtype="bfloat16", quantize=quantize))
        alone.step(alone.request(id, prompt, len(prompt)))
        while len(alone.tokens[id]) < len(tokens):
            alone.step()
        assert tokens and alone.tokens[id] == tokens
