"""Make the golden LoRA adapters from random matrices, and merge each into a model by hand: W + scale · B·A."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

TARGETS = {
    "first": (4, 8, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
    "second": (2, 3, ("q_proj", "down_proj")),
    "third": (3, 2, ("v_proj", "o_proj", "up_proj")),
}
"""By adapter: rank, alpha, and the suffixes of the names of the layers it changes."""


def write_config(folder: Path, name: str) -> None:
    """Write the configuration that peft puts next to the matrices."""
    rank, alpha, ends = TARGETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "bias": "none",
        "target_modules": ends,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def make_adapter(folder: Path, name: str, model: Any) -> Any:
    """Write an adapter of random numbers, and return a copy of the model with it merged into its weights."""
    import torch
    from safetensors.torch import save_file

    rank, alpha, ends = TARGETS[name]
    write_config(folder, name)
    generator = torch.Generator().manual_seed(5 + list(TARGETS).index(name))
    merged, tensors = copy.deepcopy(model), {}
    for module_name, module in merged.named_modules():
        if module_name.rpartition(".")[2] not in ends:
            continue
        outputs, inputs = module.weight.shape
        down = 0.3 * torch.randn(rank, inputs, generator=generator)
        up = 0.3 * torch.randn(outputs, rank, generator=generator)
        module.weight.data += alpha / rank * (up.double() @ down.double()).float()
        tensors[f"base_model.model.{module_name}.lora_A.weight"] = down
        tensors[f"base_model.model.{module_name}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    return merged
