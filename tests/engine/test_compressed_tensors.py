"""Checkpoints of compressed-tensors in 8-bit integers, against the dense checkpoints of the very numbers that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.lora_files import make_adapter
from tests.engine.quantized_files import LAYERS, Tensors, words_of, write_quantized
from tests.engine.test_parallel import Pair, pair
from tests.engine.test_table_decoder import open_torch
from tests.engine.tiny_models import expected_tokens, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import Capacity, InvalidModel
from tgi_core.backend.session import Session
from tgi_core.engine.quantization.formats.compressed_tensors import CompressedTensors

__all__ = ["pair"]

SETTINGS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None},
            "input_activations": None,
            "output_activations": None,
        }
    },
}
"""As llm-compressor writes them."""


def quantized(folder: Path, to: Path, groups: int = 1, layers: str = LAYERS, packed_bits: int = 0) -> tuple[Path, Path]:
    """A checkpoint whose matrices of such names are quantized, and the dense one of the same numbers, in float32."""
    bits = packed_bits or 8

    def write(matrix: Tensor) -> tuple[Tensors, Tensor]:
        values = matrix.unflatten(1, (groups, -1))
        scale = values.abs().amax(-1).clamp_min(1e-9) / (2 ** (bits - 1) - 1)
        codes = (values / scale.unsqueeze(-1)).round().to(torch.int8)
        parts = {"weight_scale": scale, "weight": codes.flatten(1)}
        if packed_bits:
            fields = parts.pop("weight").int() + 2 ** (bits - 1)
            parts |= {"weight_packed": words_of(fields, bits, 1), "weight_shape": torch.tensor(matrix.shape)}
        return parts, (codes.float() * scale.unsqueeze(-1)).flatten(1)

    settings = deepcopy(SETTINGS)
    if packed_bits:
        settings["format"] = "pack-quantized"
        settings["config_groups"]["group_0"]["weights"]["num_bits"] = bits
    return write_quantized(folder, to, write, settings, layers)


def step_of(session: Session) -> str:
    """How the model runs."""
    return next(kernel.name for kernel in session.capabilities().kernels if kernel.part == "step")


def check_alike(one: tuple[Session, Capacity], other: tuple[Session, Capacity]) -> dict[int, list[int]]:
    """Both make the same tokens, which are these, and run in the same way."""
    made = [ragged_schedule(*each) for each in (one, other)]
    assert made[0] == made[1] and all(made[0].values())
    assert step_of(one[0]) == step_of(other[0])
    return made[0]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(("model_type", "groups"), [("llama", 4), ("phi3", 2), ("olmo2", 1)])
def test_it_runs_as_the_dense_one(
    model_type: str, groups: int, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its table and by transformers' modules, merged or not, natively and by oneDNN, with a quantized head."""
    monkeypatch.setenv("TGI_CPU_KERNELS", kernels)
    packed, plain = quantized(save_tiny(model_type, tmp_path / "whole"), tmp_path, groups)
    made = check_alike(open_cpu(packed, dtype="float32"), open_cpu(plain, dtype="float32"))
    for id, expected in enumerate(expected_tokens(plain), 1):
        assert made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_words(bits: int, llama: Path, tmp_path: Path) -> None:
    """Codes of four and of eight bits in words, by groups of inputs."""
    packed, plain = quantized(llama, tmp_path, groups=2, packed_bits=bits)
    check_alike(open_cpu(packed, dtype="float32"), open_cpu(plain, dtype="float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_table_on_an_accelerator(dtype: str, llama: Path, tmp_path: Path) -> None:
    """The runner of accelerators reads it too, with some layers quantized and others not."""
    packed, plain = quantized(llama, tmp_path, layers=r"(k_proj|up_proj|down_proj)\.weight")
    check_alike(open_torch(packed, dtype=dtype), open_torch(plain, dtype=dtype))


def test_tied_embeddings_stay_whole(tmp_path: Path) -> None:
    """A tied head is the embedding, which is not quantized."""
    whole = save_tiny("olmo2", tmp_path / "whole", tie_word_embeddings=True)
    packed, plain = quantized(whole, tmp_path, layers=r"_proj\.weight")
    check_alike(open_cpu(packed, dtype="float32"), open_cpu(plain, dtype="float32"))


@pytest.mark.parametrize("model_type", ["llama", "olmo2"])
def test_adapters(model_type: str, tmp_path: Path) -> None:
    """Adapters are added to quantized layers as to dense ones."""
    packed, plain = quantized(save_tiny(model_type, tmp_path / "whole"), tmp_path)
    adapters = (make_adapter(tmp_path / "tuned", plain, "q_proj", "down_proj"),)
    check_alike(open_cpu(packed, dtype="float32", adapters=adapters), open_cpu(plain, dtype="float32", adapters=adapters))


@pytest.mark.parametrize("groups", [1, 16])
def test_two_ranks(groups: int, pair: Pair, llama: Path, tmp_path: Path) -> None:
    """Divided by outputs and by inputs each of two ranks makes the dense model's tokens; groups of inputs are divided, or cut in two."""
    packed, plain = quantized(llama, tmp_path, groups)
    for rank in pair(packed):
        assert "error" not in rank, rank
        for id, expected in enumerate(expected_tokens(plain), 1):
            made = rank["tokens"][str(id)]
            assert made and made == expected[: len(made)]


def settings(**fields: Any) -> Callable[[Path], None]:
    """Changes to the config's settings, or to the weights of its group."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        config = json.loads(file.read_text())
        group = config["quantization_config"]["config_groups"]["group_0"]
        for name, value in fields.items():
            owner = group["weights"] if name in group["weights"] else group if name in group else config["quantization_config"]
            owner[name] = value
        file.write_text(json.dumps(config))

    return change


def tensors(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    """A change to the tensors."""

    def damage(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


LAYER = "model.layers.1.self_attn.o_proj"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "another method": (
        settings(quant_method="nibbles"),
        "quantized by 'nibbles', which is not supported; supported are awq, bitsandbytes, compressed-tensors",
    ),
    "another format": (settings(format="marlin-24"), "format is marlin-24; supported: int-quantized"),
    "bits": (settings(num_bits=4), "config_groups.group_0.weights.num_bits is 4; supported: 8"),
    "type": (settings(type="float"), "config_groups.group_0.weights.type is float; supported: int"),
    "strategy": (settings(strategy="token"), "config_groups.group_0.weights.strategy is token; supported: channel or"),
    "outputs": (settings(output_activations={"num_bits": 8}), "config_groups.group_0.output_activations is {'num_bits': 8}"),
    "no groups": (settings(config_groups=None), "quantization_config is not of compressed-tensors"),
    "another tensor": (
        tensors(lambda t: t.update({f"{LAYER}.qzeros": torch.zeros(64, 1)})),
        f"{LAYER}: holds the tensor qzeros, which",
    ),
    "zero point": (
        tensors(lambda t: t.update({f"{LAYER}.weight_zero_point": torch.zeros(64, 1)})),
        f"{LAYER}: weight_zero_point is F32 [64, 1], not I8 [64, 1]",
    ),
    "no weight": (tensors(lambda t: t.pop(f"{LAYER}.weight")), f"{LAYER}: lacks the tensor weight"),
    "dense": (tensors(lambda t: t.update({f"{LAYER}.weight": torch.zeros(64, 64)})), f"{LAYER}: weight is F32 [64, 64]"),
    "scales": (tensors(lambda t: t.update({f"{LAYER}.weight_scale": torch.ones(63, 1)})), "weight_scale is F32 [63, 1]"),
    "sizes": (
        tensors(lambda t: t.update({f"{LAYER}.weight": torch.zeros(64, 32, dtype=torch.int8)})),
        f"tensor '{LAYER}.weight' has shape [64, 32]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, llama: Path, tmp_path: Path) -> None:
    """What the format does not say, or says otherwise, is one line that names the field or the tensor."""
    folder, _ = quantized(llama, tmp_path)
    change, message = REFUSED[name]
    change(folder)
    with pytest.raises(InvalidModel) as caught:
        open_cpu(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_order_of_groups() -> None:
    """With `weight_g_idx` each input has the scale and the zero point of the group that it names."""
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(-8, 8, (32, 64), generator=generator)
    scale, zero = torch.rand(32, 4, generator=generator) + 0.1, torch.randint(-8, 8, (32, 4), generator=generator)
    group = torch.randperm(64, generator=generator) // 16
    parts = {
        "weight_packed": words_of(codes + 8, 4, 1),
        "weight_scale": scale,
        "weight_zero_point": words_of(zero + 8, 4, 0),
        "weight_shape": torch.tensor([32, 64]),
        "weight_g_idx": group.int(),
    }
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 16, "actorder": "group"}
    settings = SETTINGS | {"format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    found = CompressedTensors(settings).unpack(parts, torch.float32).dequantize()
    assert torch.equal(found, (codes - zero[:, group]) * scale[:, group])
    with pytest.raises(ValueError, match="weight_g_idx puts 64 inputs in a group of 16"):
        CompressedTensors(settings).unpack(parts | {"weight_g_idx": torch.zeros(64, dtype=torch.int32)}, torch.float32)
