"""EAGLE-3 heads of a tiny model: files in both layouts, and what they guess, computed from vLLM's formula in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.engine.speculator_files import base_model, save

Guess = Callable[[list[int], int], list[int]]
"""From the tokens of a row, and a number, to as many tokens that follow."""
HEADS, KV_HEADS, HEAD, INNER, EPSILON = 4, 2, 32, 80, 1e-5


def layer_states(model: PreTrainedModel, tokens: list[int], layers: tuple[int, ...]) -> Tensor:
    """The streams before some layers, one behind the other [tokens, layers · hidden]."""
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[layer][0] for layer in layers], -1)


def config_of(hidden: int, vocab: int, **changes: Any) -> dict[str, Any]:
    """The config of a layer."""
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": vocab,
        "max_position_embeddings": 16,
        "rms_norm_eps": EPSILON,
        "rope_theta": 10000.0,
        **changes,
    }


def shapes(hidden: int, states: int, own_vocab: int, layer: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors, but for the embeddings and `d2t`."""
    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    return {
        "fc.weight": (hidden, states),
        f"{layer}self_attn.q_proj.weight": (queries, 2 * hidden),
        f"{layer}self_attn.k_proj.weight": (keys, 2 * hidden),
        f"{layer}self_attn.v_proj.weight": (keys, 2 * hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, queries),
        f"{layer}mlp.gate_proj.weight": (INNER, hidden),
        f"{layer}mlp.up_proj.weight": (INNER, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, INNER),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}hidden_norm.weight": (hidden,),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (own_vocab, hidden),
    }


def eagle3(folder: Path, base: Path, *, speculators: bool, own_vocab: int = 200, yarn: float = 1.0) -> tuple[Path, Guess]:
    """A random head: in the layout of the library speculators, with embeddings of its own and the norm before the residual, or in
    SpecForge's without both. `yarn`: what its queries and keys are multiplied by."""
    model, draw = base_model(base), torch.Generator().manual_seed(9)
    vocab, width = model.get_input_embeddings().weight.shape
    hidden, layer = (48, "layers.0.") if speculators else (width, "midlayer.")

    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=draw) / math.sqrt(shape[-1])

    tensors = {
        name: random(shape) if len(shape) == 2 else 1 + 2 * random(shape)
        for name, shape in shapes(hidden, 3 * width, own_vocab, layer).items()
    }
    chosen = torch.randperm(vocab, generator=draw)[:own_vocab].sort().values
    tensors["d2t"] = chosen - torch.arange(own_vocab)
    tensors["t2d"] = torch.isin(torch.arange(vocab), chosen)
    count = model.config.num_hidden_layers
    if speculators:
        tensors["embed_tokens.weight"] = random((vocab, hidden))
        states: tuple[int, ...] = (0, 3, 1)
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": str(base)}},
            "transformer_layer_config": config_of(hidden, vocab),
            "eagle_aux_hidden_state_layer_ids": list(states),
            "norm_before_residual": True,
            "draft_vocab_size": own_vocab,
        }
    else:
        states = (2, count // 2, count - 3)
        rope = {"rope_type": "yarn", "factor": 1.0, "attention_factor": yarn, "original_max_position_embeddings": 16}
        config = config_of(hidden, vocab, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=own_vocab, rope_scaling=rope)
    embedding = tensors.get("embed_tokens.weight", model.get_input_embeddings().weight.detach())

    def guess(tokens: list[int], number: int) -> list[int]:
        row, state = tokens[1:], layer_states(model, tokens[:-1], states) @ tensors["fc.weight"].T
        for _ in range(number):
            own = {name.removeprefix(layer): value for name, value in tensors.items()}
            stream = _stream(own, embedding[row], state, speculators, yarn)
            at = int((_normed(stream, tensors["norm.weight"]) @ tensors["lm_head.weight"].T).argmax())
            row, state = [*row, at + int(tensors["d2t"][at])], torch.cat((state, stream.unsqueeze(0)))
        return row[len(tokens) - 1 :]

    return save(folder, config, tensors, "model.safetensors"), guess


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON) * weight


def _stream(tensors: dict[str, Tensor], embedded: Tensor, state: Tensor, norm_before_residual: bool, yarn: float) -> Tensor:
    """The layer's stream [hidden] at the last token of a row."""
    normed = _normed(state, tensors["hidden_norm.weight"])
    x = torch.cat((_normed(embedded, tensors["input_layernorm.weight"]), normed), -1)
    query, key, value = (
        (x @ tensors[f"self_attn.{name}_proj.weight"].T).view(len(x), -1, HEAD).transpose(0, 1) for name in ("q", "k", "v")
    )
    angles = torch.arange(len(x)).float().unsqueeze(1) / 10000.0 ** (torch.arange(0, HEAD, 2) / HEAD)
    query, key = yarn * _rotated(query, angles), yarn * _rotated(key, angles)
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, 0) for part in (key, value))
    weights = (query[:, -1:] @ key.transpose(-1, -2) / math.sqrt(HEAD)).softmax(-1)
    stream = (normed if norm_before_residual else state)[-1] + tensors["self_attn.o_proj.weight"] @ (weights @ value).flatten()
    inner = _normed(stream, tensors["post_attention_layernorm.weight"])
    gate, up = (tensors[f"mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
    return stream + tensors["mlp.down_proj.weight"] @ (F.silu(gate) * up)


def _rotated(heads: Tensor, angles: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def counting_model(folder: Path, vocab: int = 64) -> Path:
    """A model that says t + 2 after token t: embeddings are unit vectors, its layers add nothing, and its output head moves by two."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=vocab,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(vocab))
        model.lm_head.weight.copy_(torch.eye(vocab).roll(2, 0))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)
    return folder


def counting_eagle3(folder: Path, vocab: int = 64) -> Path:
    """Its head, which knows even tokens only: the MLP turns the unit vector of t into that of t + 2, and the output head goes on by two."""
    even, tensors = (
        torch.arange(0, vocab, 2),
        {name: torch.zeros(shape) for name, shape in shapes(vocab, 3 * vocab, 32, "midlayer.").items()},
    )
    tensors["fc.weight"][:, vocab : 2 * vocab] = torch.eye(vocab)
    for name in ("midlayer.mlp.gate_proj", "midlayer.mlp.up_proj"):
        tensors[f"{name}.weight"][:vocab] = torch.eye(vocab)
    tensors["midlayer.mlp.down_proj.weight"][:, :vocab] = 100 * torch.eye(vocab).roll(2, 0)
    for name, value in tensors.items():
        if "norm" in name:
            value += 1
    tensors["lm_head.weight"] = torch.eye(vocab).roll(2, 0)[even]
    tensors["d2t"] = even - torch.arange(len(even))
    config = config_of(
        vocab, vocab, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=len(even), norm_before_residual=True
    )
    return save(folder, config, tensors, "model.safetensors")


def trained_eagle3(folder: Path, base: Path, texts: list[list[int]]) -> Path:
    """A head that maps the states of some texts to the token after the next one by least squares; its layer adds nothing."""
    model = base_model(base)
    vocab, width = model.get_input_embeddings().weight.shape
    layers = (model.config.num_hidden_layers - 1, 1, 0)
    tensors = {name: torch.zeros(shape) for name, shape in shapes(3 * width, 3 * width, vocab, "midlayer.").items()}
    tensors["fc.weight"] = torch.eye(3 * width)
    tensors["embed_tokens.weight"] = torch.zeros(vocab, 3 * width)
    for name, value in tensors.items():
        if "norm" in name:
            value += 1
    states = torch.cat([layer_states(model, text, layers)[:-2] for text in texts])
    inputs = _normed(states, torch.ones(3 * width)).double()
    wanted = F.one_hot(torch.tensor([token for text in texts for token in text[2:]]), vocab).double()
    ridge = inputs.T @ inputs + 1e-6 * torch.eye(3 * width)
    tensors["lm_head.weight"] = torch.linalg.solve(ridge, inputs.T @ wanted).T.float()
    config = config_of(3 * width, vocab, architectures=["LlamaForCausalLMEagle3"], eagle_aux_hidden_state_layer_ids=list(layers))
    return save(folder, config, tensors, "model.safetensors")
