"""Tiny models that bring a layer for multi-token prediction, under its published names, and what it guesses by its formula in plain
torch."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from tests.engine.speculator_files import base_model, hidden_states
from tests.engine.tiny_models import expected_tokens, save_tiny

FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Names:
    """A published layout: the norms of embedding and hidden state, the projection, the norm behind the layer, and the layer's prefix."""

    prefix: str
    parts: tuple[str, str, str, str]
    decoder: str = ""
    hidden_first: bool = False


DEEPSEEK = Names("model.layers.4.", ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
MIMO = Names("model.mtp_layers.0.", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"), "", True)
QWEN = Names("mtp.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), "layers.0.")


@dataclass(frozen=True, slots=True)
class Brought:
    """A checkpoint with its layer, the tokens that transformers generates from it, and the layer's `logits` [drafts, vocabulary]: each of
    some drafts after a row's tokens is chosen from its own."""

    folder: Path
    expected: list[list[int]]
    logits: Callable[[list[int], tuple[int, ...]], Tensor]


def bring(folder: Path, model_type: str, names: Names = DEEPSEEK, **overrides: Any) -> Brought:
    """A random model of a type that transformers has, or MiMo, with a random layer."""
    save_tiny("qwen2" if model_type == "mimo" else model_type, folder, **overrides)
    model, expected = base_model(folder), expected_tokens(folder)
    layer, parts = _layer(model), _parts(model.config.hidden_size)
    add_layer(folder, names, parts, layer, model, model_type)
    return Brought(folder, expected, lambda tokens, drafts: _logits(model, layer, parts, names, tokens, drafts))


def add_layer(folder: Path, names: Names, parts: list[Tensor], layer: nn.Module, model: PreTrainedModel, model_type: str) -> None:
    """Write the layer's own parts and its decoder layer beside the model's tensors, and the count to its config."""
    tensors = load_file(folder / FILE)
    tensors |= {f"{names.prefix}{name}.weight": part for name, part in zip(names.parts, parts, strict=True)}
    tensors |= {f"{names.prefix}{names.decoder}{name}": value for name, value in _published(layer.state_dict()).items()}
    if names is DEEPSEEK:
        tensors[f"{names.prefix}embed_tokens.weight"] = model.get_input_embeddings().weight.detach()
        tensors[f"{names.prefix}shared_head.head.weight"] = model.get_output_embeddings().weight.detach()
    save_file({name: value.clone() for name, value in tensors.items()}, folder / FILE, {"format": "pt"})
    change_config(folder, model_type=model_type, num_nextn_predict_layers=1)


def change_config(folder: Path, **changes: Any) -> None:
    """Change fields of the config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _layer(model: PreTrainedModel) -> nn.Module:
    """A random decoder layer like the model's last."""
    config, draw, last = deepcopy(model.config), torch.Generator().manual_seed(3), model.base_model.layers[-1]
    config._attn_implementation = "eager"
    layer: nn.Module = type(last)(config, len(model.base_model.layers) - 1).float().eval().requires_grad_(False)
    for name, value in layer.state_dict().items():
        noise = torch.randn(value.shape, generator=draw)
        value.copy_(1 + 0.1 * noise if "norm" in name and value.ndim == 1 else noise / math.sqrt(value.shape[-1]))
    return layer


def _parts(hidden: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(4)
    norms = [1 + 0.3 * torch.randn(hidden, generator=draw) for _ in range(3)]
    return [*norms[:2], torch.randn(hidden, 2 * hidden, generator=draw) / math.sqrt(hidden), norms[2]]


def _published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a layer as files have them: those of each expert by itself."""
    found = {}
    for name, value in state.items():
        stem, _, leaf = name.rpartition(".")
        if value.ndim != 3:
            found[name] = value
            continue
        for number, expert in enumerate(value):
            parts = {"down_proj": expert}
            if leaf == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True))
            found |= {f"{stem}.{number}.{kind}.weight": part for kind, part in parts.items()}
    return found


def _logits(
    model: PreTrainedModel, layer: nn.Module, parts: list[Tensor], names: Names, tokens: list[int], drafts: tuple[int, ...]
) -> Tensor:
    row, states, found = tokens[1:], hidden_states(model, tokens[:-1]), []
    embedding_norm, hidden_norm, projection, final_norm = parts
    with torch.inference_mode():
        for draft in drafts:
            read = [_normed(model, model.get_input_embeddings()(torch.tensor(row)), embedding_norm)]
            read.insert(0 if names.hidden_first else 1, _normed(model, states, hidden_norm))
            out = _normed(model, _run(model, layer, torch.cat(read, -1) @ projection.T)[-1:], final_norm)
            found.append(model.get_output_embeddings()(out)[0])
            row, states = [*row, draft], torch.cat((states, out))
    return torch.stack(found)


def _run(model: PreTrainedModel, layer: nn.Module, x: Tensor) -> Tensor:
    """The decoder layer over a whole row [tokens, hidden]."""
    positions, mask = torch.arange(len(x)).unsqueeze(0), torch.full((len(x), len(x)), -torch.inf).triu(1)
    angles = model.base_model.rotary_emb(x.unsqueeze(0), positions)
    out = layer(x.unsqueeze(0), attention_mask=mask[None, None], position_ids=positions, position_embeddings=angles)
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found[0]


def _normed(model: PreTrainedModel, x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + model.config.rms_norm_eps) * weight


def counting_mimo(folder: Path, vocab: int = 64) -> Path:
    """A model that says t + 2 after token t, as in `eagle3_files.counting_model`, whose layer repeats the token that it reads, so that the
    shared head goes on by two."""
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=vocab,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).float().requires_grad_(False)
    model.model.embed_tokens.weight.copy_(torch.eye(vocab))
    model.lm_head.weight.copy_(torch.eye(vocab).roll(2, 0))
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)
    one, none = torch.ones(vocab), torch.zeros(vocab, vocab)
    add_layer(folder, MIMO, [one, one, torch.cat((none, torch.eye(vocab)), -1), one], model.model.layers[0], model, "mimo")
    return folder


def trained_mimo(folder: Path, base: Path, texts: list[list[int]]) -> Path:
    """The same model as a base of Llama's type, as a MiMo: biases that it lacks are zero, and a layer maps each hidden state of some texts,
    and the token after it, to the next hidden state by least squares."""
    shutil.copytree(base, folder)
    model, tensors = base_model(base), load_file(folder / FILE)
    config, layers = Qwen2Config(**{**model.config.to_dict(), "model_type": "qwen2"}), model.base_model.layers
    for number, layer in enumerate(layers):
        for name in ("q", "k", "v"):
            size = getattr(layer.self_attn, f"{name}_proj").out_features
            tensors[f"model.layers.{number}.self_attn.{name}_proj.bias"] = torch.zeros(size)
    save_file(tensors, folder / FILE, {"format": "pt"})
    one, final = torch.ones(config.hidden_size), model.base_model.norm.weight.detach()
    states = [hidden_states(model, text) for text in texts]
    embedded = [model.get_input_embeddings()(torch.tensor(text)).detach() for text in texts]
    hidden = torch.cat([each[:-1] for each in states])
    read = torch.cat((_normed(model, hidden, one), _normed(model, torch.cat([each[1:] for each in embedded]), one)), -1).double()
    wanted = torch.cat([each[1:] for each in states]).double() / final.double()
    ridge = read.T @ read + 1e-3 * torch.eye(read.shape[1])
    projection = torch.linalg.solve(ridge, read.T @ wanted).T.float()
    idle = type(Qwen2ForCausalLM(config).model.layers[0])(config, 0).float().requires_grad_(False)
    idle.self_attn.o_proj.weight.zero_()
    idle.mlp.down_proj.weight.zero_()
    add_layer(folder, MIMO, [one, one, projection, final], idle, model, "mimo")
    return folder
