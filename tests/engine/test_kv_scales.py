"""Scales of an 8-bit KV cache that a checkpoint was calibrated with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.quantized_files import fp8, write_quantized
from tests.engine.test_fp8_cache import FP8, logprobs, opened
from tests.engine.test_runner_selection import GivenKit
from tests.engine.test_table_decoder import TorchKit
from tests.engine.tiny_models import save_tiny
from tgi_core.backend import InvalidModel, Unsupported
from tgi_core.engine.attention.cache import CacheScales, LayerCache, LayerShape
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.quantization.stored import open_weights

SETTINGS = {"quant_method": "fp8", "activation_scheme": "dynamic"}
LARGE = 2.0**14
"""How much larger keys and values are than a usual model's: what reaches them is made as much smaller, so that nothing else changes."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose keys and values an 8-bit cache cannot hold."""
    folder = save_tiny("llama", tmp_path_factory.mktemp("large"))
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        for layer, factor in (("k_proj", LARGE), ("v_proj", LARGE), ("q_proj", 1 / LARGE), ("o_proj", 1 / LARGE)):
            tensors[name] = tensors[name] * factor if f".{layer}." in name else tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return write_quantized(folder, folder / "made", fp8("weight_scale", None), SETTINGS)[0]


def with_scales(folder: Path, to: Path, scales: dict[str, Tensor]) -> Path:
    """The same checkpoint with these tensors in every layer."""
    tensors, count = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text())["num_hidden_layers"],
    )
    for layer in range(count):
        tensors |= {f"model.layers.{layer}.self_attn.{name}": scale.clone() for name, scale in scales.items()}
    to.mkdir()
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    for file in folder.glob("*.json"):
        (to / file.name).write_bytes(file.read_bytes())
    return to


def kit_of(by: str, quantized: bool) -> DeviceKit:
    """A device that runs decoders from a table or by modules, with a cache of 8 bits or of the model's dtype."""
    kit = TorchKit() if by == "table" else GivenKit(TorchAttention())
    kit.kv_cache_dtype = FP8 if quantized else None
    return kit


@pytest.mark.parametrize("by", ["table", "modules"])
def test_a_cache_needs_them(by: str, large: Path, tmp_path: Path) -> None:
    """Over a cache of 8 bits, the model makes nearly what it makes over its own dtype, where without its scales it is refused; over its own
    dtype they change nothing."""
    calibrated = with_scales(
        large, tmp_path / "made", {"k_scale": torch.tensor(LARGE / 64), "v_scale": torch.tensor([LARGE / 100])}
    )
    expected = logprobs(*opened(large, kit_of(by, False)))
    assert torch.equal(logprobs(*opened(calibrated, kit_of(by, False))), expected)
    found = logprobs(*opened(calibrated, kit_of(by, True)))
    assert not torch.equal(found, expected) and torch.allclose(found, expected, atol=0.2, rtol=0.05)
    session, _ = opened(large, kit_of(by, True))
    with pytest.raises(Unsupported, match="--kv-cache-dtype"):
        session.check_cache_dtype("float8_e4m3fn")


@pytest.mark.parametrize(
    ("names", "scales"),
    [
        ({"k_scale": [], "v_scale": [1]}, CacheScales(0.5, 0.25)),
        ({"attn.k_scale": [1], "attn.v_scale": []}, CacheScales(0.5, 0.25)),
        ({"k_proj.k_scale": [], "v_proj.v_scale": []}, CacheScales(0.5, 0.25)),
        ({"k_proj.output_scale": [1], "v_proj.output_scale": [1]}, CacheScales(0.5, 0.25)),
        ({"kv_scale": []}, CacheScales(0.5, 0.5)),
        ({"v_scale": []}, CacheScales(1.0, 0.5)),
        ({"k_scale": [2, 1, 1], "q_scale": []}, CacheScales(0.5, 1.0)),
    ],
)
def test_names(names: dict[str, list[int]], scales: CacheScales, large: Path, tmp_path: Path) -> None:
    """Every tool's names and shapes are read, in 16 bits, too; of scales of heads the largest counts."""
    values = (torch.tensor(0.5), torch.tensor(0.25))
    tensors = {name: value.expand(names[name]).bfloat16().clone() for name, value in zip(names, values, strict=False)}
    if names.get("k_scale"):
        tensors["k_scale"][1] = 0.125
    found = open_weights(with_scales(large, tmp_path / "made", tensors))
    assert found.cache_scales[0] == found.cache_scales[1] == scales
    assert not any(name.endswith("_scale") for name in found.by_name)


def test_a_checkpoint_of_nothing_else(llama: Path, tmp_path: Path) -> None:
    """compressed-tensors also writes scales beside weights that are not quantized."""
    folder = with_scales(llama, tmp_path / "made", {"k_scale": torch.tensor(0.5)})
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    settings = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": scheme}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    assert open_weights(folder).cache_scales[1] == CacheScales(0.5, 1.0)
    assert torch.equal(logprobs(*opened(folder, kit_of("table", False))), logprobs(*opened(llama, kit_of("table", False))))


@pytest.mark.parametrize(
    ("scale", "reason"),
    [
        (torch.ones(2, 2), r"'model.layers.0.self_attn.k_scale' is F32 \[2, 2\], not F32 or F16 or BF16 \[1\] or one per head"),
        (torch.ones(0), r"F32 \[0\]"),
        (torch.ones(1, dtype=torch.int32), r"I32 \[1\]"),
        (torch.tensor(0.0), "'model.layers.0.self_attn.k_scale' is 0, not a scale above 0"),
        (torch.tensor(-1.0), "is -1"),
        (torch.tensor(float("nan")), "is nan"),
        (torch.tensor(float("inf")), "is inf"),
    ],
)
def test_damage(scale: Tensor, reason: str, large: Path, tmp_path: Path) -> None:
    """What is no scale is refused in one line that names file and tensor."""
    folder = with_scales(large, tmp_path / "made", {"k_scale": scale})
    with pytest.raises(InvalidModel, match=reason) as raised:
        opened(folder, kit_of("table", True))
    assert str(folder / "model.safetensors") in str(raised.value) and "\n" not in str(raised.value)


def test_chips_of_half_the_numbers() -> None:
    """e4m3fnuz, whose numbers are half of e4m3fn's, holds the same keys and values with twice the scale, and a few larger ones; others need
    no scale."""
    shape = LayerShape(1, 4, 4, scales=CacheScales(0.5, 4.0))
    key = torch.tensor([[[200.0, -0.125, 1.0, 300.0]]])
    found = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float32):
        cache = LayerCache(shape, 1, 16, dtype, torch.device("cpu"))
        cache.write(torch.tensor([17]), key, key)
        found.append((cache.flat_keys[17].float() * cache.scales.key, cache.flat_values[17].float() * cache.scales.value))
    (keys, values), other, plain = found
    assert keys.flatten().tolist() == [192.0, -0.125, 1.0, 224.0] and other[0].flatten().tolist() == [192.0, -0.125, 1.0, 240.0]
    assert torch.equal(values, other[1]) and values.flatten().tolist() == [192.0, -0.125, 1.0, 288.0]
    assert torch.equal(plain[0], key[0]) and torch.equal(plain[1], key[0])
