"""Quantized checkpoints of every format, against the dense ones of the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.kernel_layouts import eetq, exl2, hqq, marlin
from tests.engine.quantized_files import (
    Settings,
    Writer,
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    words_of,
    write_quantized,
)
from tests.engine.test_compressed_tensors import check_alike
from tests.engine.test_parallel import Pair, pair
from tests.engine.tiny_models import expected_tokens, open_cpu, save_tiny
from tgi_core.engine.quantization.formats.gptq import Gptq
from tgi_core.engine.quantization.stored import open_weights

__all__ = ["pair"]


def packed(bits: int, **fields: Any) -> tuple[Writer, Settings]:
    """pack-quantized of compressed-tensors."""
    return compressed_tensors(
        "pack-quantized", {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"} | fields
    )


def floats(stored: str, strategy: str, **fields: Any) -> tuple[Writer, Settings]:
    """Floats of compressed-tensors."""
    return compressed_tensors(stored, {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy} | fields)


FP8: Settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BNB: Settings = {"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": False}
HQQ: Settings = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32}}}
BITS4 = {"num_bits": 4, "symmetric": True, "type": "float"}


def of_gptq(
    bits: int, size: int, *, symmetric: bool = True, version: int = 1, shuffled: bool = False, **fields: Any
) -> tuple[Writer, Settings]:
    """GPTQ, with settings as GPTQModel writes them, but for `fields`."""
    settings = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": shuffled, "sym": symmetric}
    if version == 2:
        settings["checkpoint_format"] = "gptq_v2"
    return gptq(bits, size, symmetric=symmetric, version=version, shuffled=shuffled), settings | fields


FORMATS: dict[str, Callable[[], tuple[Writer, Settings]]] = {
    "gptq, 4 bits": lambda: of_gptq(4, 32),
    "gptq, 2 bits": lambda: of_gptq(2, 16),
    "gptq, 3 bits": lambda: of_gptq(3, -1),
    "gptq, 8 bits": lambda: of_gptq(8, -1, symmetric=False),
    "gptq, zero points": lambda: of_gptq(4, 32, symmetric=False),
    "gptq, version 2": lambda: of_gptq(4, 32, symmetric=False, version=2),
    "gptq, version 2 said to be 1": lambda: of_gptq(4, 32, version=2, checkpoint_format="gptq"),
    "gptq, version 1 said to be 2": lambda: of_gptq(4, 32, checkpoint_format="gptq_v2"),
    "gptq, act-order": lambda: of_gptq(4, 16, shuffled=True),
    "auto-round": lambda: of_gptq(4, 32, quant_method="auto-round", packing_format="auto_round:auto_gptq"),
    "awq": lambda: (awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}),
    "nf4": lambda: (bitsandbytes("nf4"), BNB | {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "nf4, double": lambda: (bitsandbytes("nf4", double=True), BNB | {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "fp4": lambda: (bitsandbytes("fp4"), BNB | {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    "bitsandbytes, int8": lambda: (bitsandbytes("int8"), BNB | {"load_in_8bit": True}),
    "fp8, blocks": lambda: (fp8("weight_scale_inv", (16, 32)), FP8 | {"weight_block_size": [16, 32]}),
    "fp8, short blocks": lambda: (fp8("weight_scale_inv", (40, 48)), FP8 | {"weight_block_size": [40, 48]}),
    "fp8, AutoFP8's": lambda: (lambda matrix: fp8("weight_scale", tuple(matrix.shape))(matrix), FP8),
    "fbgemm": lambda: (fp8("weight_scale", None), {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
    "packed, 4 bits": lambda: packed(4, strategy="group", group_size=32),
    "packed, 3 bits": lambda: packed(3),
    "packed, zero points": lambda: packed(4, strategy="group", group_size=16, symmetric=False),
    "packed, 8 bits, zero points": lambda: packed(8, symmetric=False),
    "int8": lambda: compressed_tensors(
        "int-quantized", {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}
    ),
    "float8": lambda: floats("float-quantized", "channel"),
    "float8, one scale": lambda: floats("float-quantized", "tensor"),
    "float8, blocks": lambda: floats("float-quantized", "block", block_structure=[32, 32]),
    "eetq": lambda: (eetq, {"quant_method": "eetq", "weights": "int8"}),
    "exl2": lambda: (exl2, {"quant_method": "exl2", "bits": 4.0}),
    "hqq, 4 bits": lambda: (hqq(4, 32, 1, torch.bfloat16), HQQ),
    "hqq, 3 bits": lambda: (hqq(3, 32, 1), HQQ),
    "hqq, 8 bits": lambda: (hqq(8, 32, 1, torch.float16), HQQ),
    "hqq, 2 bits, columns": lambda: (hqq(2, 16, 0), HQQ),
    "hqq, 1 bit": lambda: (hqq(1, 32, 1), HQQ),
    "marlin": lambda: (marlin(-1), {"quant_method": "marlin", "bits": 4, "group_size": -1}),
    "marlin of AutoGPTQ": lambda: (marlin(-1), of_gptq(4, -1, is_marlin_format=True)[1]),
    "nvfp4": lambda: compressed_tensors("nvfp4-pack-quantized", BITS4 | {"strategy": "tensor_group", "group_size": 16}),
    "mxfp4": lambda: compressed_tensors("mxfp4-pack-quantized", BITS4 | {"strategy": "group", "group_size": 32}),
}


FAMILIES = (
    *(
        "gptq, zero points",
        "awq",
        "nf4, double",
        "bitsandbytes, int8",
        "fp8, short blocks",
        "fbgemm",
        "eetq",
        "exl2",
        "hqq, 4 bits",
    ),
    *("marlin", "packed, zero points", "int8", "float8, blocks", "nvfp4", "mxfp4"),
)
"""At least one of each format."""


@pytest.mark.parametrize("name", FORMATS)
def test_the_numbers_are_the_writers(name: str, llama: Path, tmp_path: Path) -> None:
    """Dequantized, every weight is bit for bit what its writer says that it stands for."""
    quantized, plain = write_quantized(llama, tmp_path, *FORMATS[name]())
    stored, wanted = open_weights(quantized), load_file(plain / "model.safetensors")
    assert stored.by_name.keys() == wanted.keys()
    for weight_name, matrix in wanted.items():
        found = stored.by_name[weight_name]
        assert found.shape == tuple(matrix.shape)
        assert torch.equal(stored.weight(found, torch.float32).dequantize(), matrix), weight_name


@pytest.mark.parametrize("name", FAMILIES)
def test_it_runs_as_the_dense_one(name: str, llama: Path, tmp_path: Path) -> None:
    """The same tokens, on the same path."""
    quantized, plain = write_quantized(llama, tmp_path, *FORMATS[name]())
    made = check_alike(open_cpu(quantized, dtype="float32"), open_cpu(plain, dtype="float32"))
    for id, expected in enumerate(expected_tokens(plain), 1):
        assert made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("name", ["gptq, act-order", "fbgemm"])
def test_it_runs_in_transformers_modules(name: str, tmp_path: Path) -> None:
    """Also where no table describes the model."""
    write, settings = FORMATS[name]()
    quantized, plain = write_quantized(save_tiny("phi3", tmp_path / "whole"), tmp_path, write, settings)
    check_alike(open_cpu(quantized, dtype="float32"), open_cpu(plain, dtype="float32"))


@pytest.mark.parametrize("name", ["gptq, act-order", *FAMILIES])
def test_two_ranks(name: str, pair: Pair, llama: Path, tmp_path: Path) -> None:
    """Two ranks make the dense model's tokens."""
    quantized, plain = write_quantized(llama, tmp_path, *FORMATS[name]())
    for rank in pair(quantized):
        assert "error" not in rank, rank
        for id, expected in enumerate(expected_tokens(plain), 1):
            made = rank["tokens"][str(id)]
            assert made and made == expected[: len(made)]


def test_words_of_gptq() -> None:
    """One word of 4-bit codes, and its zero points in version 1: 0x76543210 holds 0 to 7, and a stored 7 stands for 8."""
    word = torch.tensor([[0x76543210] * 8], dtype=torch.int32)
    parts: dict[str, Tensor] = {
        "qweight": word,
        "qzeros": torch.tensor([[0x77777777]], dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }
    weight = Gptq(of_gptq(4, -1)[1]).unpack(parts, torch.float32)
    assert weight.dequantize().tolist() == [[-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]] * 8
    assert words_of(torch.arange(8).unsqueeze(1), 4, 0).tolist() == [[0x76543210]]


def test_words_of_awq() -> None:
    """The word 0x75316420 holds outputs 0 to 7 in order."""
    write, settings = FORMATS["awq"]()
    assert words_of(torch.tensor([[0, 2, 4, 6, 1, 3, 5, 7]]), 4, 1).tolist() == [[0x75316420]]
    assert settings["quant_method"] == "awq" and set(write(torch.randn(8, 64))[0]) == {"qweight", "qzeros", "scales"}
