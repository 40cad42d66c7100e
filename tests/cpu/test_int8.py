"""GEMMs of eight-bit weights with rows that are rounded to eight bits."""

from __future__ import annotations

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
from tests.cpu.test_gemm import codes, numbers, numbers_of, run
from tests.engine.tiny_models import PROMPTS, Schedule, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import Feature
from tgi_core.engine.quantization.weight import Scaled


@pytest.fixture
def rounding(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Kernels that round rows."""
    monkeypatch.setattr(kernels, "int8_rows", True)
    return kernels


def product(kernels: Kernels, weights: list[Scaled], x: Tensor, panels: Panels = Panels.PLAIN) -> Tensor:
    """x · Wᵀ, or silu(gate) · up."""
    arena = Arena(kernels)
    linear = pack(kernels, arena, weights, None, panels)
    assert linear.layout == Layout.INT8
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
    seed=st.integers(0, 1 << 20),
)
def test_integers_are_multiplied_exactly(rounding: Kernels, rows: int, shape: tuple[int, int], columns: int, seed: int) -> None:
    """The result is that of the rounded rows, to float32's precision and bfloat16's last place; merged and in pairs. The other rows do not
    matter."""
    groups, size = shape
    one, other = (codes(columns, groups * size, groups, 8, False, seed + place) for place in (0, 1))
    x = numbers(rows, groups * size, dtype=torch.bfloat16, seed=seed)
    exact = rounded(x, size if groups > 1 else 128)
    found = product(rounding, [one, other], x)
    wanted, sizes = (f(exact) @ f(torch.cat([numbers_of(one), numbers_of(other)])).T for f in (lambda v: v, torch.abs))
    assert ((found.double() - wanted).abs() <= wanted.abs() * 2.0**-8 + sizes * 1e-5).all()
    gated = product(rounding, [one, other], x, Panels.PAIRS)
    for first in range(0, rows, 9):
        some = x[first : first + 9].clone()
        assert torch.equal(product(rounding, [one, other], some), found[first : first + 9])
        assert torch.equal(product(rounding, [one, other], some, Panels.PAIRS), gated[first : first + 9])


@pytest.mark.parametrize("variant", [*VARIANTS, EMULATED], ids=lambda variant: variant.name)
@pytest.mark.parametrize("groups", [1, 5])
def test_tiles_and_vectors_agree_to_the_bit(variant: Variant, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every instruction set gives the bits of AVX2, for few rows and many."""
    kernels, plain = kernels_of(variant), kernels_of(VARIANTS[-1])
    weight, x = codes(112, 640, groups, 8, False, 1), numbers(75, 640, dtype=torch.bfloat16, seed=2)
    for own in (kernels, plain):
        monkeypatch.setattr(own, "int8_rows", True)
    for rows in (1, 4, 5, 17, 40, 75):
        assert torch.equal(product(kernels, [weight], x[:rows].clone()), product(plain, [weight], x[:rows].clone()))


def test_rounding_costs_little(rounding: Kernels) -> None:
    """Against rows that are not rounded the error of normal numbers is below one percent of the result's size."""
    weight, x = codes(96, 1024, 1, 8, False, 1), numbers(33, 1024, dtype=torch.bfloat16, seed=2)
    exact = x.double() @ numbers_of(weight).T
    assert (product(rounding, [weight], x).double() - exact).norm() < 0.01 * exact.norm()


def test_what_is_no_number_shows_in_its_row(rounding: Kernels) -> None:
    """A row with NaN or an infinity is NaN; zeros are zeros; other rows are as before."""
    weight, x = codes(48, 256, 1, 8, False, 1), numbers(20, 256, dtype=torch.bfloat16, seed=2)
    before = product(rounding, [weight], x)
    x[3, 100], x[7, 255], x[11] = float("nan"), float("-inf"), 0
    found = product(rounding, [weight], x)
    assert found[3].isnan().all() and found[7].isnan().all() and not found[11].any()
    keep = [row for row in range(20) if row not in (3, 7, 11)]
    assert torch.equal(found[keep], before[keep])


def test_rows_are_rounded_only_if_asked(kernels: Kernels) -> None:
    """Without the setting, and for codes with zero points or of four bits, inputs are not rounded."""
    assert pack(kernels, Arena(kernels), [codes(32, 64, 1, 8, False, 1)]).layout == Layout.CODES8
    kernels.int8_rows = True
    try:
        assert pack(kernels, Arena(kernels), [codes(32, 64, 1, 8, True, 1)]).layout == Layout.CODES8
        assert pack(kernels, Arena(kernels), [codes(32, 64, 1, 4, False, 1)]).layout == Layout.CODES4
    finally:
        kernels.int8_rows = False


@pytest.mark.parametrize("variant", [*VARIANTS, EMULATED], ids=lambda variant: variant.name)
def test_a_model_runs_in_eight_bits(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--quantize int8` the fused step rounds rows, and makes the same tokens in chunks and beside others as alone."""
    kernels_of(variant)
    monkeypatch.setenv(CHOICE, variant.name)
    monkeypatch.setenv(INT8_ROWS, "1")
    folder = save_tiny("llama", tmp_path)
    session, capacity = open_cpu(folder, dtype="bfloat16", quantize="int8")
    assert "times rows of 8 bits" in str(session.capabilities()) and Feature.BATCH_INVARIANT in session.capabilities().features
    together = ragged_schedule(session, capacity)
    for (id, tokens), prompt in zip(together.items(), PROMPTS, strict=True):
        alone = Schedule(*open_cpu(folder, dtype="bfloat16", quantize="int8"))
        alone.step(alone.request(id, prompt, len(prompt)))
        while len(alone.tokens[id]) < len(tokens):
            alone.step()
        assert tokens and alone.tokens[id] == tokens
