"""GEMMs of inputs that are rounded to eight bits: their arithmetic in torch, the vendor's GEMM, and what formats say of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.engine.quantized_files import compressed_tensors, fp8, write_quantized
from tests.engine.test_fp8_cache import logprobs
from tests.engine.test_runner_selection import GivenKit
from tests.engine.test_table_decoder import PLAN, TorchKit
from tests.engine.tiny_models import save_tiny, silent
from tgi_core.backend import InvalidModel, OpenOptions
from tgi_core.backend.session import Session
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.open_model import open_session
from tgi_core.engine.quantization.linear import LinearProvider, Linears
from tgi_core.engine.quantization.rounded_linear import ScaledMMLinears, device_codes
from tgi_core.engine.quantization.rows import RowRounding, rounded_product, rounded_rows
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.quantization.torch_linear import TorchLinears
from tgi_core.engine.quantization.weight import Affine, Dense, Scaled, Weight, concatenated
from tgi_core.engine.triton.rounded_linear import TritonRoundedLinears

CPU = torch.device("cpu")
E4M3, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def noise(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))


def floats(dtype: torch.dtype = torch.bfloat16, groups: int = 1, scale: float | None = None) -> Scaled:
    """A weight [32, 64] of e4m3 floats."""
    return Scaled(((noise(32, 64) * 100).to(E4M3), noise(32, groups).abs() + 0.1), dtype, scale)


@pytest.mark.parametrize(("dtype", "error"), [(torch.int8, 0.01), (E4M3, 0.04), (FNUZ, 0.04)])
@pytest.mark.parametrize("group", [64, 16])
def test_rows(dtype: torch.dtype, error: float, group: int) -> None:
    """A row's largest number is the largest code, the rest is rounded to the nearest; zeros stay, and no row depends on others."""
    rows = torch.cat((noise(5, 64), noise(1, 64) * 1e4, torch.zeros(1, 64))).bfloat16()
    rounding = RowRounding(dtype, group)
    codes, scales = rounded_rows(rows, rounding)
    assert codes.dtype is dtype and scales.shape == (7, 64 // group)
    found = (codes.float().unflatten(1, (-1, group)) * scales.unsqueeze(-1)).flatten(1)
    assert ((found - rows.float()).norm(dim=1) <= error * rows.float().norm(dim=1)).all()
    assert (codes.float().unflatten(1, (-1, group)).abs().amax(-1)[:6] == rounding.most).all() and not found[6].any()
    assert torch.equal(rounded_rows(rows[3:4], rounding)[0].float(), codes[3:4].float())


@pytest.mark.parametrize("scale", [None, 0.02])
@pytest.mark.parametrize("dtype", [torch.int8, E4M3])
def test_rows_that_are_not_finite(dtype: torch.dtype, scale: float | None) -> None:
    """Every output of such a row is not finite, and other rows are as they were."""
    rows = noise(4, 64).bfloat16()
    rows[1, 5], rows[2, 63] = float("nan"), float("-inf")
    weight = floats(scale=scale)
    product = rounded_product(rows, weight, RowRounding.of(weight, dtype))
    assert not product[1:3].isfinite().any() and product[[0, 3]].isfinite().all()


def test_calibrated_scales() -> None:
    """A scale from calibration holds for every row, and larger numbers are cut off; for groups there is none."""
    rows = torch.tensor([[1.0, -100.0, 0.3, 0.8] * 16])
    codes, scales = rounded_rows(rows, RowRounding.of(floats(scale=0.5), torch.int8))
    assert codes[0, :4].tolist() == [2, -127, 1, 2] and scales.tolist() == [[0.5]]
    assert (
        RowRounding.of(floats(scale=0.5), FNUZ).scale == 1.0 and RowRounding.of(floats(groups=2, scale=0.5), E4M3).scale is None
    )


def test_scales_of_concatenated_weights() -> None:
    """The largest scale of inputs holds for a merged projection, and none where a part has none; slices keep it."""
    one, two, none = floats(scale=0.5), floats(scale=0.75), floats()
    joined = concatenated([one, two])
    assert isinstance(joined, Scaled) and joined.input_scale == 0.75 and joined.shape == (64, 64)
    assert isinstance(without := concatenated([one, none]), Scaled) and without.input_scale is None
    assert one.rows(0, 4).input_scale == one.to(CPU, copy=True).input_scale == one.columns(16, 32).input_scale == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [None, 0.01])
def test_the_vendor_s_product(dtype: torch.dtype, scale: float | None) -> None:
    """torch's scaled GEMM multiplies what the reference does, for any number of rows, with a bias and without."""
    linears, weight = Linears((ScaledMMLinears(E4M3, rounded_rows), TorchLinears()), CPU), floats(dtype, scale=scale)
    bias = noise(32).to(dtype)
    linear, plain = linears.load(weight, bias), linears.load(weight)
    assert [kernel.name for kernel in linears.kernels()] == ["scaled-mm"], linears.kernels()
    assert linears.rounds_inputs and linear.num_bytes == 32 * 64 + 32 * 4
    for shape in ((0, 64), (1, 64), (2, 17, 64)):
        input = noise(3, *shape)[0].to(dtype) if 0 not in shape else torch.empty(shape, dtype=dtype)
        expected = rounded_product(input.reshape(-1, 64), weight, RowRounding.of(weight, E4M3)).view(*shape[:-1], 32)
        tolerance = 4 * torch.finfo(dtype).eps * (expected.abs().max() if expected.numel() else 1)
        assert ((plain(input) - expected).abs() <= tolerance).all()
        assert ((linear(input) - expected - bias).abs() <= tolerance).all()


def test_codes_of_half_the_numbers() -> None:
    """Every code stands for the same weight where the same bits are half the number, −0 among them."""
    bits = torch.arange(256, dtype=torch.uint8)
    codes, scales = bits[(bits & 127) != 127].view(2, -1).view(E4M3), torch.tensor([[0.5], [3.0]])
    made, doubled = device_codes(Scaled((codes, scales), torch.bfloat16), FNUZ)
    assert made.dtype is FNUZ and torch.equal(made.float() * doubled, codes.float() * scales)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (Dense.of(torch.zeros(16, 16, dtype=torch.bfloat16)), "dense weights"),
        (Affine((torch.zeros(1, 16), torch.ones(1, 1), torch.ones(1, 1)), torch.bfloat16), "affine weights"),
        (Scaled((torch.zeros(1, 16).to(torch.int8), torch.ones(1, 1), torch.ones(1, 1)), torch.bfloat16), "zero points"),
        (floats(torch.float32), "float32"),
        (Scaled((torch.zeros(1, 16).to(torch.float8_e5m2), torch.ones(1, 1)), torch.bfloat16), "float8_e5m2"),
        (Scaled((torch.zeros(1, 24).to(E4M3), torch.ones(1, 1)), torch.bfloat16), "24 inputs are no multiple of 16"),
        (floats(groups=4), "groups of 16 inputs are no multiples of 32"),
        (Scaled((torch.arange(16).view(1, 16).to(torch.int8), torch.ones(1, 1)), torch.bfloat16), "codes of four bits"),
    ],
)
def test_refused(weight: Weight, reason: str) -> None:
    """What such kernels don't multiply is left to others, with the reason."""
    assert reason in TritonRoundedLinears(E4M3).refusal(weight)
    assert reason in ScaledMMLinears(E4M3, rounded_rows).refusal(weight)


def test_refused_by_one() -> None:
    """A chip without 8-bit floats multiplies integers only; the vendor's GEMM takes floats with a scale per output."""
    whole = Scaled(((torch.arange(512).view(8, 64) % 256 - 128).to(torch.int8), torch.ones(8, 1)), torch.bfloat16)
    assert TritonRoundedLinears(None).refusal(whole) == "" and "8-bit floats" in TritonRoundedLinears(None).refusal(floats())
    vendor = ScaledMMLinears(E4M3, rounded_rows)
    assert vendor.refusal(whole) == "codes of torch.int8" and vendor.refusal(floats(groups=2)) == "scales by groups"
    assert vendor.refusal(floats().rows(0, 8)) == "8 outputs are no multiple of 16"


def test_a_wrong_product_is_found() -> None:
    """A vendor's GEMM that rounds otherwise is passed over, with the difference."""
    linears = Linears((ScaledMMLinears(E4M3, lambda rows, rounding: rounded_rows(rows * 1.1, rounding)), TorchLinears()), CPU)
    linears.load(floats())
    (kernel,) = linears.kernels()
    assert kernel.name == "torch" and "not scaled-mm: its GEMM of 1 rows" in kernel.reason and not linears.rounds_inputs


ROUNDING = (ScaledMMLinears(E4M3, rounded_rows), TorchLinears())


class TableKit(TorchKit):
    """A device that runs tables, and rounds inputs."""

    def linears(self) -> Sequence[LinearProvider]:
        """The vendor's GEMM first."""
        return ROUNDING


class ModulesKit(GivenKit):
    """A device that runs modules, and rounds inputs."""

    def linears(self) -> Sequence[LinearProvider]:
        """The vendor's GEMM first."""
        return ROUNDING


@pytest.mark.parametrize("kit", [TableKit(), ModulesKit(TorchAttention())], ids=["table", "modules"])
def test_models(kit: DeviceKit, tmp_path: Path) -> None:
    """A model runs with rounded inputs, from its table or by modules: its self-check allows for them; logprobs are nearly the same."""
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    folder, _ = write_quantized(save_tiny("llama", tmp_path), tmp_path / "made", fp8("weight_scale", None), settings)
    found = []
    for each in (kit, TorchKit()):
        session = Session(open_session(OpenOptions(str(folder), dtype="bfloat16"), each, silent), "rounded")
        found.append(logprobs(session, session.warmup(PLAN, silent)))
        linear = {kernel.name for kernel in session.capabilities().kernels if kernel.part == "linear"}
        assert ("scaled-mm" in linear) is (each is kit)
    assert not torch.equal(*found) and torch.allclose(*found, atol=0.3)


CHANNELS = compressed_tensors("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"})


@pytest.mark.parametrize("kind", ["fp8, static", "fp8, dynamic", "integers", "integers with zero points"])
def test_checkpoints(kind: str, tmp_path: Path) -> None:
    """The scale of inputs is read where a checkpoint's is static and symmetric; a value that is none is an error that names the layer."""
    settings = {"quant_method": "fp8", "activation_scheme": kind.removeprefix("fp8, ")}
    write, settings = (fp8("weight_scale_inv", None), settings) if kind.startswith("fp8") else CHANNELS
    value = torch.tensor(0.25)

    def with_inputs(matrix: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, plain = write(matrix)
        zeros = {"input_zero_point": torch.tensor([3], dtype=torch.int8)} if kind.endswith("points") else {}
        return parts | {"input_scale": value.clone()} | zeros, plain

    folder = write_quantized(save_tiny("llama", tmp_path), tmp_path / "made", with_inputs, settings)[0]
    stored = open_weights(folder)
    weight = stored.weight(stored.by_name["model.layers.0.mlp.up_proj.weight"], torch.bfloat16)
    assert isinstance(weight, Scaled) and weight.input_scale == (0.25 if kind in ("fp8, static", "integers") else None)
    if weight.input_scale is not None:
        value.fill_(0)
        wrong = open_weights(write_quantized(tmp_path, tmp_path / "wrong", with_inputs, settings)[0])
        with pytest.raises(InvalidModel, match=r"layers.0.mlp.up_proj: the scale of inputs is 0"):
            wrong.weight(wrong.by_name["model.layers.0.mlp.up_proj.weight"], torch.bfloat16)
