"""Quantized experts: one by one, as most files have them, and stacked, as gpt-oss does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.engine.quantized_files import write_quantized
from tests.engine.test_formats import FORMATS
from tests.engine.test_parallel import Pair, pair
from tests.engine.tiny_models import expected_tokens, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.stored import open_weights

__all__ = ["pair"]

EXPERTS = r"(experts\.\d+\.\w+|_proj)\.weight"


def check_tokens(folder: Path, plain: Path) -> None:
    """The dense model's, as transformers makes them."""
    made = ragged_schedule(*open_cpu(folder, dtype="float32"))
    for id, expected in enumerate(expected_tokens(plain), 1):
        assert made[id] and made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "qwen2_moe"])
@pytest.mark.parametrize("name", ["gptq, zero points", "awq", "int8", "fp8, short blocks"])
def test_experts_one_by_one(name: str, model_type: str, tmp_path: Path) -> None:
    """Experts of each format are dequantized into the stacks that transformers computes with; other layers stay quantized."""
    quantized, plain = write_quantized(save_tiny(model_type, tmp_path / "whole"), tmp_path, *FORMATS[name](), layers=EXPERTS)
    check_tokens(quantized, plain)


def test_two_ranks(pair: Pair, tmp_path: Path) -> None:
    """Experts are divided too."""
    whole = save_tiny("mixtral", tmp_path / "whole")
    quantized, plain = write_quantized(whole, tmp_path, *FORMATS["awq"](), layers=EXPERTS)
    for rank in pair(quantized):
        assert "error" not in rank, rank
        for id, expected in enumerate(expected_tokens(plain), 1):
            made = rank["tokens"][str(id)]
            assert made and made == expected[: len(made)]


def gpt_oss(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint with random blocks, and the dense one of what transformers unpacks them to."""
    whole = save_tiny("gpt_oss", tmp_path / "whole")
    packed = load_file(whole / "model.safetensors")
    plain, generator = dict(packed), torch.Generator().manual_seed(1)
    for name in [name for name in packed if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = packed.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, (experts, rows, columns // 32), generator=generator, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32).contiguous()
    config = json.loads((whole / "config.json").read_text())
    for kind, tensors, fields in (("packed", packed, {"quantization_config": {"quant_method": "mxfp4"}}), ("plain", plain, {})):
        (tmp_path / kind).mkdir()
        save_file(tensors, tmp_path / kind / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / kind / "config.json").write_text(json.dumps(config | fields))
    return tmp_path / "packed", tmp_path / "plain"


def test_stacked_experts(tmp_path: Path) -> None:
    """Bit for bit what transformers unpacks, and its tokens."""
    quantized, plain = gpt_oss(tmp_path)
    stored, wanted = open_weights(quantized), load_file(plain / "model.safetensors")
    assert stored.by_name.keys() == wanted.keys()
    for name, found in stored.by_name.items():
        value = stored.tensor(found) if found.format is None else stored.weight(found, torch.float32).dequantize()
        assert found.shape == tuple(wanted[name].shape) and torch.equal(value, wanted[name]), name
    check_tokens(quantized, plain)


def test_damage(tmp_path: Path) -> None:
    """A stack without its scales, or with scales for other blocks."""
    quantized, _ = gpt_oss(tmp_path)
    file = quantized / "model.safetensors"
    tensors, name = load_file(file), "model.layers.1.mlp.experts.down_proj"
    save_file({each: value for each, value in tensors.items() if each != f"{name}_scales"}, file)
    with pytest.raises(InvalidModel, match=rf"{file}: {name}: lacks the tensor scales"):
        open_weights(quantized)
    save_file(tensors | {f"{name}_scales": tensors[f"{name}_scales"][:, 1:].contiguous()}, file)
    with pytest.raises(InvalidModel, match=rf"{name}: scales is U8 \[4, 63, 3\], not U8 or F8_E8M0 \[4, 64, 3\]"):
        open_weights(quantized)
