"""Speculators of a tiny model: files in the layouts that TGI serves, and what they guess, computed from the papers' formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

Guess = Callable[[Tensor, int], list[int]]
"""From the hidden state [hidden] after which a token was chosen, and that token, to the tokens that follow."""


def base_model(folder: Path) -> PreTrainedModel:
    """The model in float32, by transformers."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def hidden_states(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """What the output head takes, [tokens, hidden]."""
    with torch.inference_mode():
        found: Tensor = model.base_model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    return found


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str) -> Path:
    """Write a config and tensors. Returns the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / file)
    return folder


def medusa(folder: Path, base: Path, version: int, heads: int = 3, layers: int = 1) -> tuple[Path, Guess]:
    """Random Medusa heads."""
    model, tensors, draw = base_model(base), dict[str, Tensor](), torch.Generator().manual_seed(7)
    vocab, hidden = model.get_output_embeddings().weight.shape

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw) / math.sqrt(shape[-1])

    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = 3 * random(hidden, hidden)
            tensors[f"{head}.{layer}.linear.bias"] = random(hidden)
        if version == 1:
            tensors[f"{head}.{layers}.weight"] = random(vocab, hidden)

    def guess(state: Tensor, token: int) -> list[int]:
        made = []
        for head in range(heads):
            x = state
            for layer in range(layers):
                x = x + F.silu(tensors[f"{head}.{layer}.linear.weight"] @ x + tensors[f"{head}.{layer}.linear.bias"])
            output = tensors[f"{head}.{layers}.weight"] if version == 1 else model.get_output_embeddings().weight
            made.append(int((output @ x).argmax()))
        return made

    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": str(base)}
    return save(folder, config, tensors, "medusa_lm_head.safetensors"), guess


def mlp(folder: Path, base: Path, *, tied: bool, scaled: bool, places: int = 3, inner: int = 48) -> tuple[Path, Guess]:
    """A random MLPSpeculator."""
    model, tensors, draw = base_model(base), dict[str, Tensor](), torch.Generator().manual_seed(8)
    vocab, hidden = model.get_output_embeddings().weight.shape

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw) / math.sqrt(shape[-1])

    for place in range(1 if tied else places):
        tensors[f"speculator.emb.{place}.weight"] = random(vocab, inner)
        tensors[f"speculator.head.{place}.weight"] = random(vocab, inner)
        tensors[f"speculator.ln.{place}.weight"] = 1 + 0.2 * random(1, inner)[0]
        tensors[f"speculator.ln.{place}.bias"] = random(1, inner)[0]
    for place in range(2 if tied else places):
        tensors[f"speculator.proj.{place}.weight"] = random(inner, inner if place else hidden)

    def of(name: str, place: int, kind: str = "weight") -> Tensor:
        return tensors[f"speculator.{name}.{min(place, 1 if name == 'proj' else 0) if tied else place}.{kind}"]

    def normed(x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean() + 1e-6)

    def guess(state: Tensor, token: int) -> list[int]:
        share, made = 0.5 ** (0.5 / places), []
        if scaled:
            state = normed(state) / math.sqrt(2)
        for place in range(places):
            embedded = of("emb", place)[token] * math.sqrt(1 - share**2) * math.sqrt(inner / 2)
            x = normed(of("proj", place) @ state * share + embedded) * of("ln", place) + of("ln", place, "bias")
            state = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
            token = int((of("head", place) @ state).argmax())
            made.append(token)
        return made

    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "n_predict": places,
        "inner_dim": inner,
        "tie_weights": tied,
        "scale_input": scaled,
        "base_model_name_or_path": str(base),
    }
    return save(folder, config, tensors, "model.safetensors"), guess


def trained_medusa(folder: Path, base: Path, texts: list[list[int]], heads: int) -> Path:
    """Heads of version 1 that map each hidden state of some texts to the token after the next one, and so on, by least squares."""
    model, tensors = base_model(base), dict[str, Tensor]()
    vocab, hidden = model.get_output_embeddings().weight.shape
    states = [hidden_states(model, text) for text in texts]
    for head in range(heads):
        tensors[f"{head}.0.linear.weight"], tensors[f"{head}.0.linear.bias"] = torch.zeros(hidden, hidden), torch.zeros(hidden)
        inputs = torch.cat([state[: len(state) - 2 - head] for state in states]).double()
        targets = torch.tensor([token for text in texts for token in text[2 + head :]])
        wanted = F.one_hot(targets, vocab).double()
        ridge = inputs.T @ inputs + 1e-6 * torch.eye(hidden)
        tensors[f"{head}.1.weight"] = torch.linalg.solve(ridge, inputs.T @ wanted).T.float()
    config = {"medusa_num_heads": heads, "medusa_num_layers": 1, "base_model_name_or_path": str(base)}
    return save(folder, config, tensors, "medusa_lm_head.safetensors")
