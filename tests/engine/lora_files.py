"""LoRA adapters of random numbers, and the model that each is meant to make of another: W + scale · B·A, merged by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.tiny_models import expected_tokens
from tgi_core.backend import Adapter

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.05,
    "bias": "none",
    "modules_to_save": None,
    "use_rslora": False,
    "use_dora": False,
    "init_lora_weights": True,
}


def targets(model_directory: Path, *ends: str) -> Iterator[tuple[str, int, int]]:
    """Name, inputs and outputs of the model's linear layers whose names end so."""
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ends:
            outputs, inputs = module.weight.shape
            yield (name, inputs, outputs) if isinstance(module, torch.nn.Linear) else (name, outputs, inputs)


def random_tensors(wanted: Iterator[tuple[str, int, int]], rank: int, seed: int) -> dict[str, Tensor]:
    """Strong enough to change what a tiny model says."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, inputs, outputs in wanted:
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.2
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.2
    return tensors


def save_adapter(folder: Path, tensors: dict[str, Tensor], **changes: Any) -> Adapter:
    """An adapter's directory; it is called as its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return Adapter(folder.name, str(folder))


def make_adapter(folder: Path, model_directory: Path, *ends: str, rank: int = 4, seed: int = 0, **changes: Any) -> Adapter:
    """A random adapter of the layers whose names end so."""
    return save_adapter(folder, random_tensors(targets(model_directory, *ends), rank, seed), r=rank, **changes)


def merged(model_directory: Path, adapter: Adapter, folder: Path) -> Path:
    """The model with the adapter in its weights, for adapters of one rank and alpha."""
    from safetensors.torch import load_file

    config = json.loads((Path(adapter.directory) / "adapter_config.json").read_text())
    tensors = load_file(Path(adapter.directory) / "adapter_model.safetensors")
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    for name, down in tensors.items():
        if ".lora_A." not in name:
            continue
        module = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
        change = scale * (tensors[name.replace("lora_A", "lora_B")].double() @ down.double())
        change = change if isinstance(module, torch.nn.Linear) else change.t()
        module.weight.data = (module.weight.data.double() + change).float()
    model.save_pretrained(folder)
    return folder


def merged_tokens(model_directory: Path, adapter: Adapter, folder: Path) -> list[list[int]]:
    """What transformers generates from the merged model."""
    return expected_tokens(merged(model_directory, adapter, folder))
