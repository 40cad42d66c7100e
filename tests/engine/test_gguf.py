"""GGUF files as models, against the dense checkpoints of the same numbers and transformers' own reader of them."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.engine.gguf_files import write_gguf
from tests.engine.lora_files import make_adapter
from tests.engine.test_compressed_tensors import check_alike, step_of
from tests.engine.test_parallel import Pair, pair
from tests.engine.tiny_models import PROMPTS, expected_tokens, open_cpu, ragged_schedule, save_tiny, silent
from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.formats.gguf_blocks import BLOCKS
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.quantization.weight import Grouped
from tgi_core.errors import StartupError
from tgi_core.gguf.header import read_gguf
from tgi_core.hub import Source, fetch

__all__ = ["pair"]

ALL = r"(_proj|lm_head|embed_tokens|w[123])\.weight$"
SMALL: dict[str, Any] = {"intermediate_size": 96}
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
"""Sizes for blocks of 256."""
IMPLIED: dict[str, dict[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True, "query_pre_attn_scalar": 16},
    "qwen3_moe": {"norm_topk_prob": True},
}
"""What files of a type don't say."""
TYPES = ("llama", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi3", "gemma2")


def directory(file: Path, tmp_path: Path) -> Path:
    """The model directory over a file."""
    return fetch(Source(str(file), cache=tmp_path / "cache"), silent)


@pytest.mark.parametrize("kind", [*BLOCKS, "F16", "BF16", "F32"])
def test_the_numbers_are_the_packages(kind: str, tmp_path: Path) -> None:
    """Every type, in every matrix and the embedding: bit for bit what the package `gguf` dequantizes; and the model's tokens are those of
    the dense one."""
    whole = save_tiny("llama", tmp_path / "whole", **(WIDE if kind.endswith("_K") else SMALL))
    file, plain = write_gguf(whole, tmp_path, {ALL: kind})
    folder = directory(file, tmp_path)
    stored, wanted = open_weights(folder), load_file(plain / "model.safetensors")
    assert stored.by_name.keys() == wanted.keys()
    for name, matrix in wanted.items():
        found = stored.by_name[name]
        value = stored.tensor(found).float() if found.format is None else stored.weight(found, torch.float32).dequantize()
        assert torch.equal(value, matrix), name
    made = check_alike(open_cpu(folder, dtype="float32"), open_cpu(plain, dtype="float32"))
    for id, expected in enumerate(expected_tokens(plain), 1):
        assert made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("model_type", TYPES)
def test_architectures(model_type: str, tmp_path: Path) -> None:
    """Each makes the tokens of the dense checkpoint of the same numbers, with the config of the file's metadata."""
    file, plain = write_gguf(save_tiny(model_type, tmp_path / "whole", **IMPLIED.get(model_type, {})), tmp_path, {ALL: "Q8_0"})
    made = ragged_schedule(*open_cpu(directory(file, tmp_path), dtype="float32"))
    for id, expected in enumerate(expected_tokens(plain), 1):
        assert made[id] and made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_transformers_reads_the_same(kind: str, tmp_path: Path) -> None:
    """Its own reader of the file makes the same tokens."""
    whole = save_tiny("llama", tmp_path / "whole", **WIDE)
    file, _ = write_gguf(whole, tmp_path, {ALL: kind})
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    session, capacity = open_cpu(directory(file, tmp_path), dtype="float32")
    made = ragged_schedule(session, capacity)
    for id, prompt in enumerate(PROMPTS, 1):
        ids = torch.tensor([prompt])
        out = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(made[id]), eos_token_id=None
        )
        assert out[0, len(prompt) :].tolist() == made[id]


@pytest.mark.parametrize("kind", BLOCKS)
def test_quantized_weights_stay_so(kind: str, tmp_path: Path) -> None:
    """Every type runs in its codes where a device has a kernel for them; the embedding is dequantized."""
    sizes = WIDE if kind.endswith("_K") else SMALL
    file, _ = write_gguf(save_tiny("llama", tmp_path / "whole", **sizes), tmp_path, {ALL: kind})
    folder = directory(file, tmp_path)
    weight = open_weights(folder).by_name["model.layers.0.self_attn.q_proj.weight"]
    assert isinstance(open_weights(folder).weight(weight, torch.bfloat16), Grouped)
    session, _ = open_cpu(folder, dtype="bfloat16")
    assert step_of(session) == step_of(open_cpu(tmp_path / "plain", dtype="bfloat16")[0])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_two_ranks(kind: str, pair: Pair, tmp_path: Path) -> None:
    """Two ranks make the dense model's tokens."""
    file, plain = write_gguf(save_tiny("llama", tmp_path / "whole"), tmp_path, {ALL: kind})
    for rank in pair(directory(file, tmp_path)):
        assert "error" not in rank, rank
        for id, expected in enumerate(expected_tokens(plain), 1):
            made = rank["tokens"][str(id)]
            assert made and made == expected[: len(made)]


def test_adapters(tmp_path: Path) -> None:
    """Adapters are added to a file's weights as to dense ones."""
    file, plain = write_gguf(save_tiny("llama", tmp_path / "whole"), tmp_path, {ALL: "Q8_0"})
    adapters = (make_adapter(tmp_path / "tuned", plain, "q_proj", "down_proj"),)
    folder = directory(file, tmp_path)
    check_alike(open_cpu(folder, dtype="float32", adapters=adapters), open_cpu(plain, dtype="float32", adapters=adapters))


def test_a_directory_of_one_file(tmp_path: Path) -> None:
    """It is that file's model; of several one has to be named; a file that changed is read anew."""
    file, _ = write_gguf(save_tiny("llama", tmp_path / "whole"), tmp_path / "made", {})
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(file, only / "model-Q8_0.gguf")
    first = directory(only, tmp_path)
    assert json.loads((first / "config.json").read_text())["model_type"] == "llama" and directory(only, tmp_path) == first
    os.utime(only / "model-Q8_0.gguf", (1, 1))
    assert directory(only, tmp_path) != first
    shutil.copy(file, only / "other.gguf")
    with pytest.raises(StartupError, match="holds 2 GGUF files; name one of them"):
        directory(only, tmp_path)


def test_damage_is_one_line(tmp_path: Path) -> None:
    """100 files with another byte in the header, or cut short: refused in one line that names the file, or read as numbers. No other
    error."""
    file, plain = write_gguf(save_tiny("llama", tmp_path / "whole", num_hidden_layers=1), tmp_path, {ALL: "Q4_0"})
    data, rng, refused = file.read_bytes(), random.Random(3), 0
    wanted = {name: value.shape for name, value in load_file(plain / "model.safetensors").items()}
    header = min(tensor.start for tensor in read_gguf(file).tensors.values())
    names = data.index(b"token_embd.weight") - 200
    for number in range(100):
        broken = bytearray(data)
        if number % 10 == 0:
            del broken[-rng.randrange(1, len(data)) :]
        else:
            place = rng.randrange(4096) if number % 2 else rng.randrange(names, header)
            broken[place] = rng.randrange(256)
        target = tmp_path / f"{number}.gguf"
        target.write_bytes(broken)
        try:
            folder = directory(target, tmp_path)
            stored = open_weights(folder)
            for weight in stored.by_name.values():
                assert stored.tensor(weight).dim() if weight.format is None else stored.weight(weight, torch.float32)
            if {name: weight.shape for name, weight in stored.by_name.items()} != wanted:
                open_cpu(folder, dtype="float32")
        except (StartupError, InvalidModel) as error:
            said = str(error)
            assert str(target) in said or str(folder) in said
            assert "\n" not in said and len(said) < 500
            refused += 1
    assert refused > 40
