"""GEMMs with quantized weights in Triton's interpreter; run by `test_quantized.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import triton

from tests.engine.quantized_files import compressed_tensors, gptq, write_quantized
from tests.engine.test_table_decoder import TorchKit, check_exact, open_torch
from tests.engine.tiny_models import ragged_schedule, save_tiny
from tgi_core.engine.quantization.linear import LinearProvider
from tgi_core.engine.quantization.rows import rounded_product, rounded_rows
from tgi_core.engine.quantization.torch_linear import TorchLinears
from tgi_core.engine.quantization.weight import Affine, Dense, Scaled, Weight
from tgi_core.engine.triton.linear import MOST_ROWS, TritonLinears, packed
from tgi_core.engine.triton.quantized import TILES, launch_dequantize
from tgi_core.engine.triton.rounded_linear import TritonRoundedLinears
from tgi_core.engine.triton.scaled_gemm import TILES as SCALED_TILES
from tgi_core.engine.triton.scaled_gemm import launch_round_rows

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter")

DTYPES = (torch.float32, torch.float16)
"""The interpreter multiplies bfloat16 as integers, and truncates to it where devices round."""

OUTPUTS = 50


def integers(low: int, end: int, columns: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Random codes [outputs, columns]."""
    return torch.randint(low, end, (OUTPUTS, columns), generator=torch.Generator().manual_seed(columns)).to(dtype)


def floats(groups: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers [outputs, groups] that sums don't hide."""
    return (torch.rand(OUTPUTS, groups, generator=torch.Generator().manual_seed(groups)) + 0.1).to(dtype)


def e4m3(columns: int) -> torch.Tensor:
    """Every e4m3 number, denormal ones among them, but NaN."""
    bits = integers(0, 256, columns, torch.uint8)
    return torch.where((bits & 0x7F) == 0x7F, 3, bits).to(torch.uint8).view(torch.float8_e4m3fn)


KINDS: dict[str, Callable[[torch.dtype], Weight]] = {
    "int8": lambda dtype: Scaled((integers(-128, 128, 96), floats(1)), dtype),
    "int8, a tail": lambda dtype: Scaled((integers(-128, 128, 72), floats(1)), dtype),
    "int8, zero points": lambda dtype: Scaled((integers(-128, 128, 96), floats(3), integers(-128, 128, 3)), dtype),
    "int4": lambda dtype: Scaled((integers(-8, 8, 192), floats(6)), dtype),
    "int4, a tail": lambda dtype: Scaled((integers(-8, 8, 160), floats(5)), dtype),
    "int4, scale per output": lambda dtype: Scaled((integers(-8, 8, 96), floats(1)), dtype),
    "int4, groups of 16": lambda dtype: Scaled((integers(-8, 8, 48), floats(3)), dtype),
    "int4, zero points": lambda dtype: Scaled(
        (integers(0, 16, 256, torch.uint8), floats(2, torch.float16), integers(0, 16, 2, torch.uint8)), dtype
    ),
    "int4, zero points between codes": lambda dtype: Scaled((integers(-8, 8, 128), floats(2), floats(2)), dtype),
    "int4, offsets": lambda dtype: Affine((integers(0, 16, 128), floats(4, torch.float16), floats(4, torch.float16)), dtype),
    "int8, offsets": lambda dtype: Affine((integers(0, 64, 128, torch.int16), floats(8), -floats(8)), dtype),
    "e4m3": lambda dtype: Scaled((e4m3(128), floats(1)), dtype),
    "e4m3 in blocks": lambda dtype: Scaled((e4m3(256), floats(2)), dtype),
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_torch_s(kind: str) -> None:
    """Dequantized, a weight has the same bits as by torch; packed, it takes the bits of its codes."""
    for dtype in DTYPES:
        weight = KINDS[kind](dtype)
        assert torch.equal(launch_dequantize(packed(weight), dtype), weight.dequantize())
    bits = 4 if kind.startswith("int4") else 8
    assert packed(weight).layout.bits == bits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(kind: str, dtype: torch.dtype) -> None:
    """Any number of rows, in any shape, with a bias and without, is multiplied by the weight that torch makes of it."""
    weight, provider = KINDS[kind](dtype), TritonLinears()
    assert provider.refusal(weight) == provider.self_check(weight) == ""
    matrix, bias = weight.dequantize(), floats(1, dtype).flatten()
    for shape, own in (((0,), None), ((1,), bias), ((17,), None), ((TILES[-1].rows + 3,), bias), ((2, MOST_ROWS[dtype]), bias)):
        input = torch.randn(*shape, matrix.shape[1], generator=torch.Generator().manual_seed(1)).to(dtype)
        expected = F.linear(input.double(), matrix.double(), None if own is None else own.double())
        found = provider.load(weight, own)(input)
        assert found.dtype is dtype and found.shape == expected.shape
        assert not len(input) or (found - expected).abs().max() <= (torch.finfo(dtype).eps + 2e-6) * expected.abs().max()


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (Dense.of(torch.zeros(4, 4)), "dense"),
        (Scaled((torch.zeros(4, 24, dtype=torch.int8), torch.ones(4, 2)), torch.float32), "groups of 12 inputs"),
        (Scaled((torch.zeros(4, 32).to(torch.float8_e5m2), torch.ones(4, 1)), torch.float32), "float8_e5m2"),
        (Affine((torch.tensor([[0, 256]], dtype=torch.int16), torch.ones(1, 1), torch.ones(1, 1)), torch.float32), "eight bits"),
        (Scaled((torch.zeros(4, 32, dtype=torch.int8), torch.ones(4, 1)), torch.float64), "float64"),
    ],
)
def test_refused(weight: Weight, reason: str) -> None:
    """What the kernels don't know is left to torch, with the reason."""
    assert reason in TritonLinears().refusal(weight)


def test_the_self_check_finds_wrong_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that dequantizes wrongly, or fails, is not used."""
    weight = KINDS["int8"](torch.float32)
    for wrong, reason in ((lambda *args: weight.dequantize() * 1.01, "differ"), (lambda *args: 1 // 0, "ZeroDivisionError")):
        monkeypatch.setattr("tgi_core.engine.triton.quantized.launch_dequantize", wrong)
        assert reason in TritonLinears().self_check(weight)


ROUNDED: dict[str, Callable[[], Scaled]] = {
    "int8": lambda: Scaled((integers(-128, 128, 272), floats(1)), torch.float16),
    "int8, calibrated": lambda: Scaled((integers(-128, 128, 96), floats(1)), torch.float16, 0.01),
    "int8, groups": lambda: Scaled((integers(-128, 128, 192), floats(2)), torch.float16),
    "e4m3": lambda: Scaled((e4m3(272), floats(1)), torch.float16),
    "e4m3, calibrated": lambda: Scaled((e4m3(96), floats(1)), torch.float16, 0.005),
    "e4m3, groups": lambda: Scaled((e4m3(256), floats(2)), torch.float16),
}
"""Weights of eight bits, in a dtype that the interpreter computes; it does not know e4m3fnuz."""


@pytest.mark.parametrize("kind", ROUNDED)
def test_rounded_rows(kind: str) -> None:
    """Inputs have the codes and scales that torch gives them, and a row that is not finite has no finite scale."""
    weight = ROUNDED[kind]()
    rounding = TritonRoundedLinears(torch.float8_e4m3fn).rounding(weight)
    rows = torch.randn(5, weight.shape[1] + 8, generator=torch.Generator().manual_seed(2)).half()[:, : weight.shape[1]]
    rows[1], rows[2, 3], rows[3, -1] = 0, torch.nan, torch.inf
    codes, scales = launch_round_rows(rows, rounding)
    wanted, wanted_scales = rounded_rows(rows, rounding)
    assert torch.equal(scales.nan_to_num(7.0, 8.0), wanted_scales.nan_to_num(7.0, 8.0))
    assert torch.equal(codes[[0, 1, 4]].float(), wanted[[0, 1, 4]].float())
    assert not scales[2, 0].isfinite() and not scales[3, -1].isfinite()


@pytest.mark.parametrize("kind", ROUNDED)
def test_rounded_products(kind: str) -> None:
    """Any number of rows is multiplied by what torch multiplies. A row times integers has the bits that it has alone."""
    weight, provider = ROUNDED[kind](), TritonRoundedLinears(torch.float8_e4m3fn)
    assert provider.refusal(weight) == provider.self_check(weight) == ""
    bias, rounding = floats(1, torch.float16).flatten(), provider.rounding(weight)
    plain, biased = provider.load(weight, None), provider.load(weight, bias)
    for shape, linear in (((0,), plain), ((1,), biased), ((17,), plain), ((2, SCALED_TILES[1].rows // 2 + 1), biased)):
        input = torch.randn(*shape, weight.shape[1], generator=torch.Generator().manual_seed(1)).half()
        expected = rounded_product(input.flatten(0, -2), weight, rounding).view(*shape, OUTPUTS)
        expected = expected + bias if linear is biased else expected
        found = linear(input)
        assert found.dtype is torch.float16 and found.shape == expected.shape
        assert not len(input) or (found - expected).abs().max() <= (torch.finfo(torch.float16).eps + 2e-6) * expected.abs().max()
        if kind.startswith("int8") and len(input):
            assert torch.equal(linear(input.flatten(0, -2)[-1:])[0], found.flatten(0, -2)[-1])


def test_rounding_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that rounds wrongly, or fails, is not used."""
    for wrong, reason in (
        (lambda rows, rounding: rounded_rows(rows * 1.1, rounding), "is off by"),
        (lambda *args: 1 // 0, "ZeroDivisionError"),
    ):
        monkeypatch.setattr("tgi_core.engine.triton.scaled_gemm.launch_round_rows", wrong)
        assert reason in TritonRoundedLinears(None).self_check(ROUNDED["int8"]())


class Kit(TorchKit):
    """A device with kernels for quantized weights."""

    def linears(self) -> Sequence[LinearProvider]:
        """Those first."""
        return (TritonLinears(), TorchLinears())


class RoundingKit(TorchKit):
    """A device whose inputs of eight-bit weights are rounded."""

    def linears(self) -> Sequence[LinearProvider]:
        """Those that round first."""
        return (TritonRoundedLinears(None), TorchLinears())


def test_a_model_of_rounded_inputs(tmp_path: Path) -> None:
    """A model of integers runs from its table with rounded inputs, and passes its self-check."""
    write, settings = compressed_tensors(
        "int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    )
    folder, _ = write_quantized(save_tiny("llama", tmp_path, num_hidden_layers=1), tmp_path / "made", write, settings)
    session, capacity = open_torch(folder, RoundingKit(), dtype="float16")
    kernels = {kernel.part: kernel.name for kernel in session.capabilities().kernels}
    assert kernels["step"] == "table" and kernels["linear"] == "triton-w8a8"
    assert ragged_schedule(session, capacity)


def test_a_quantized_model_is_token_exact(tmp_path: Path) -> None:
    """A GPTQ checkpoint makes the tokens of the dense one of the same numbers, and takes less memory."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    folder, plain = write_quantized(save_tiny("llama", tmp_path, num_hidden_layers=1), tmp_path / "made", gptq(4, 32), settings)
    session, capacity = open_torch(folder, Kit())
    kernels = [kernel for kernel in session.capabilities().kernels if kernel.part == "linear"]
    assert "triton" in {kernel.name for kernel in kernels}
    other, limits = open_torch(plain, Kit())
    assert ragged_schedule(session, capacity) == ragged_schedule(other, limits)
    check_exact(plain, Kit())
