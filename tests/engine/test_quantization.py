"""Weights in every layout, and the choice of what multiplies by them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.test_parallel import Pair, pair
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import Unsupported
from tgi_core.engine.models.linear import WeightLinear
from tgi_core.engine.parallel.partition import Shard
from tgi_core.engine.quantization import rounding
from tgi_core.engine.quantization.checking import disagreement
from tgi_core.engine.quantization.linear import Linear, Linears
from tgi_core.engine.quantization.rounding import rounded
from tgi_core.engine.quantization.torch_linear import TorchLinear, TorchLinears
from tgi_core.engine.quantization.weight import Affine, Dense, Scaled, Weight, concatenated

__all__ = ["pair"]

CPU = torch.device("cpu")


def dense(dtype: torch.dtype = torch.float32) -> Dense:
    """A matrix [12, 16]."""
    return Dense.of(torch.randn(12, 16, generator=torch.Generator().manual_seed(1)).to(dtype))


def scaled(groups: int, dtype: torch.dtype = torch.float32) -> Scaled:
    """The same of integers."""
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(-128, 128, (12, 16), generator=generator).to(torch.int8)
    return Scaled((codes, torch.rand(12, groups, generator=generator) + 0.01), dtype)


def affine(groups: int, dtype: torch.dtype = torch.float32) -> Affine:
    """The same with offsets, of unsigned integers."""
    codes, scales = scaled(groups).parts
    offsets = torch.randn(12, groups, generator=torch.Generator().manual_seed(3))
    return Affine(((codes.to(torch.int16) + 128).to(torch.uint8), scales, offsets.half()), dtype)


LAYOUTS: dict[str, Callable[[], Weight]] = {
    "dense": dense,
    "dense, bfloat16": lambda: dense(torch.bfloat16),
    "scaled by rows": lambda: scaled(1),
    "scaled by groups": lambda: scaled(4),
    "scaled, bfloat16": lambda: scaled(4, torch.bfloat16),
    "affine": lambda: affine(4),
    "affine, bfloat16": lambda: affine(1, torch.bfloat16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_a_weight_are_parts_of_its_matrix(layout: str) -> None:
    """Rows, an order of rows, columns and one below the other: done to the weight and to its matrix they give the same numbers."""
    weight = LAYOUTS[layout]()
    matrix = weight.dequantize()
    assert weight.shape == tuple(matrix.shape) == (12, 16) and matrix.dtype is weight.dtype
    order = torch.tensor([3, 0, 11, 3])
    assert torch.equal(weight.rows(2, 7).dequantize(), matrix[2:7])
    assert torch.equal(weight.reordered(order).dequantize(), matrix[order])
    for start, end in ((0, 16), (4, 12), (3, 10), (15, 16)):
        assert torch.equal(weight.columns(start, end).dequantize(), matrix[:, start:end])
    both = concatenated([weight, weight.rows(0, 5)])
    assert type(both) is type(weight) and torch.equal(both.dequantize(), torch.cat((matrix, matrix[:5])))
    assert weight.dense_bytes == matrix.nbytes and weight.num_bytes == sum(part.nbytes for part in weight.parts)
    copy = weight.to(CPU, copy=True)
    assert all(mine.data_ptr() != theirs.data_ptr() for mine, theirs in zip(copy.parts, weight.parts, strict=True))
    for shard in (Shard(0, ((0, 4), (8, 12))), Shard(1, ((4, 8),)), Shard(1, ((0, 4), (8, 12)))):
        assert torch.equal(shard.of_weight(weight).dequantize(), shard.of(matrix))


def test_numbers_of_codes_and_scales() -> None:
    """Code times its group's scale, rounded to the dtype."""
    weight = Scaled((torch.tensor([[1, -2, 3, -128]], dtype=torch.int8), torch.tensor([[0.5, 0.3]])), torch.bfloat16)
    assert weight.dequantize().tolist() == torch.tensor([[0.5, -1.0, 0.9, -38.4]]).bfloat16().tolist()


def test_layouts_that_differ_join_dense() -> None:
    """What shares no layout, or has other groups, becomes one matrix."""
    for first, second in ((dense(), scaled(1)), (scaled(1), scaled(4))):
        both = concatenated([first, second])
        assert type(both) is Dense and torch.equal(both.dequantize(), torch.cat((first.dequantize(), second.dequantize())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_offsets_and_scales_join(dtype: torch.dtype) -> None:
    """Integers with offsets and those without, in other groups, stay integers; floats do not."""
    weights = [affine(2, dtype), scaled(4, dtype), affine(1, dtype)]
    both = concatenated(weights)
    assert type(both) is Affine and both.group_size == 4
    assert torch.equal(both.dequantize(), torch.cat([weight.dequantize() for weight in weights]))
    floats = Scaled((scaled(4).parts[0].to(torch.float8_e4m3fn), scaled(4).parts[1]), dtype)
    assert type(concatenated([affine(2, dtype), floats])) is Dense


@dataclass
class Provider:
    """A provider that is as it is told, and right."""

    name: str
    cannot_run: str = ""
    refuses: str = ""
    wrong: str = ""
    asked: int = 0

    def probe(self) -> str:
        """As told."""
        return self.cannot_run

    def refusal(self, weight: Weight) -> str:
        """Of dense weights, as told."""
        return self.refuses if isinstance(weight, Dense) else ""

    def self_check(self, weight: Weight) -> str:
        """As told."""
        self.asked += 1
        return self.wrong

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """By torch."""
        return TorchLinear(weight.dequantize(), bias)


def test_the_first_that_serves_is_chosen() -> None:
    """Weight by weight; checked once per layout and dtype; each rejection is told with its reason."""
    providers = (
        Provider("absent", cannot_run="no such chip"),
        Provider("coded", refuses="it is dense"),
        Provider("off", wrong="off by 3"),
    )
    linears = Linears((*providers, TorchLinears()), CPU)
    for weight in (dense(), scaled(1), dense(), scaled(4)):
        input, bias = torch.ones(2, 16), torch.arange(12.0)
        assert torch.equal(linears.load(weight, bias)(input), F.linear(input, weight.dequantize(), bias))
    assert {kernel.name: kernel.reason for kernel in linears.kernels()} == {
        "torch": "not absent: no such chip; not coded: it is dense; not off: off by 3",
        "coded": "not absent: no such chip",
    }
    assert [provider.asked for provider in providers] == [0, 1, 1]
    with pytest.raises(Unsupported, match="not absent: no such chip"):
        Linears(providers[:1], CPU).load(dense())


def test_wrong_products_are_found() -> None:
    """The check against torch finds a product that differs, and one that fails; torch's own is right in every layout and dtype."""

    class Broken(TorchLinears):
        def load(self, weight: Weight, bias: Tensor | None) -> Linear:
            return TorchLinear(self.change(weight.dequantize()), bias)

        def change(self, matrix: Tensor) -> Tensor:
            return matrix * 1.1

    class Failing(Broken):
        def change(self, matrix: Tensor) -> Tensor:
            return matrix[:, 1:]

    class Blank(Broken):
        def change(self, matrix: Tensor) -> Tensor:
            return matrix * float("nan")

    for layout in LAYOUTS:
        assert "off by" in disagreement(Broken(), LAYOUTS[layout]())
        assert "off by nan" in disagreement(Blank(), LAYOUTS[layout]())
        assert "RuntimeError" in disagreement(Failing(), LAYOUTS[layout]())
        assert disagreement(TorchLinears(), LAYOUTS[layout]()) == ""


def test_a_layer_before_a_kernel_has_its_weight() -> None:
    """It computes, says its sizes and dtype, and its weight goes with it to another device."""
    weight, bias = scaled(4, torch.bfloat16), torch.ones(12).bfloat16()
    layer, input = WeightLinear(weight, bias), torch.ones(2, 16).bfloat16()
    assert torch.equal(layer(input), F.linear(input, weight.dequantize(), bias))
    assert (layer.in_features, layer.out_features) == (16, 12) and layer.weight.dtype is torch.bfloat16
    assert layer.weight.isnan().all() and layer.weight.untyped_storage().nbytes() == 2
    moved = layer.to("meta")
    assert {part.device.type for part in moved.stored.parts} == {"meta"} and moved.weight.device.type == "meta"
    assert moved.bias is not None and moved.bias.device.type == "meta" and tuple(moved.weight.shape) == (12, 16)


@pytest.mark.parametrize(
    ("kind", "inputs", "most"), [("int8", 48, 0.005), ("int4", 64, 0.09), ("int4", 48, 0.005), ("fp8", 48, 0.04)]
)
def test_rounding_to_nearest(kind: str, inputs: int, most: float) -> None:
    """Half a step of a row's, or a group's, range at most; inputs that groups do not divide take 8 bits. All zeros stay so."""
    matrix = torch.randn(12, inputs, generator=torch.Generator().manual_seed(3))
    matrix[3] = 0
    weight = rounded(matrix, kind, torch.float32)
    assert (weight.dequantize() - matrix).abs().max() <= most * matrix.abs().max() and not weight.dequantize()[3].any()
    assert len(weight.parts) == (3 if most == 0.09 else 2)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("most", [1.0, 1e5])
def test_rounding_in_pieces(kind: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large matrix, which is rounded a few rows at a time, gets the codes, scales and zero points that it gets as a whole: also if one
    row has scales that are no float16."""
    matrix = torch.randn(37, 64, generator=torch.Generator().manual_seed(4))
    matrix[30] *= most
    whole = rounded(matrix, kind, torch.float32)
    monkeypatch.setattr(rounding, "_PIECE", 5 * 64)
    pieces = rounded(matrix, kind, torch.float32)
    assert all(map(torch.equal, whole.parts, pieces.parts))


@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "phi3", "mixtral"])
def test_quantized_at_load(model_type: str, tied: bool, quantize: str, tmp_path: Path) -> None:
    """A plain checkpoint runs as one would that held the rounded weights: from its table, or by transformers' modules. The session says
    that it does. The head has eight bits, or all of them with floats of eight bits; embeddings, also tied ones, and the routers of experts
    keep their numbers."""
    folder = save_tiny(model_type, tmp_path / "whole", tie_word_embeddings=tied)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
    tensors["lm_head.weight"] = head.clone() if quantize == "fp8" else rounded(head, "int8", torch.float32).dequantize()
    for name, value in tensors.items():
        # in transformers 4, experts are linear layers of their own
        if not TRANSFORMERS_5 and re.search(r"experts\.\d+\.w\d\.weight$", name):
            tensors[name] = rounded(value, quantize, torch.float32).dequantize()
        if re.search(r"self_attn\.\w+_proj\.weight$|mlp\.(gate_up|gate|up|down)_proj\.weight$", name):
            tensors[name] = rounded(value, quantize, torch.float32).dequantize()
    (tmp_path / "rounded").mkdir()
    save_file(tensors, tmp_path / "rounded" / "model.safetensors", metadata={"format": "pt"})
    for file in folder.glob("*.json"):
        shutil.copy(file, tmp_path / "rounded")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "rounded" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    session, capacity = open_cpu(folder, dtype="float32", quantize=quantize)
    assert session.capabilities().quantize == quantize
    assert ragged_schedule(session, capacity) == ragged_schedule(*open_cpu(tmp_path / "rounded", dtype="float32"))


def test_two_ranks_round_the_whole_weight(pair: Pair, llama: Path) -> None:
    """Two ranks make the tokens of one."""
    wanted = ragged_schedule(*open_cpu(llama, dtype="float32", quantize="int4"))
    for rank in pair(llama, quantize="int4"):
        assert "error" not in rank, rank
        for id, tokens in wanted.items():
            made = rank["tokens"][str(id)]
            assert made and made == tokens[: len(made)]
