"""GGUF files of tiny models, written with the package `gguf`, and the dense checkpoints of the numbers that they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ARCHITECTURES = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "phi3": "phi3",
    "gemma2": "gemma2",
}
"""`general.architecture` by model type."""

_PLACE_OF_D = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Bytes of a block where a float16 scale is, in types that the package reads and does not write."""

_EXPERT = re.compile(r"(model\.layers\.(\d+)\.\w+)\.experts\.(\d+)\.(\w+)\.weight")
_EXPERTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def encoded(matrix: Tensor, kind: str) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Blocks of a type, and the matrix that the package says they stand for. Of types that it does not write: random ones."""
    number = gguf.GGMLQuantizationType[kind]
    if kind not in _PLACE_OF_D:
        raw = gguf.quantize(matrix.float().numpy(), number)
    else:
        elements, size = gguf.GGML_QUANT_SIZES[number]
        rng = np.random.default_rng(matrix.numel())
        raw = rng.integers(0, 256, (matrix.shape[0], matrix.shape[1] // elements * size), dtype=np.uint8)
        spread = {"Q2_K": 0.005, "Q3_K": 0.002, "Q4_K": 0.0005, "Q5_K": 0.0002, "Q6_K": 0.0001}[kind]
        for at in _PLACE_OF_D[kind]:
            raw.reshape(-1, size)[:, at : at + 2] = rng.normal(0, spread, (raw.size // size, 1)).astype(np.float16).view(np.uint8)
    return raw, torch.from_numpy(gguf.dequantize(raw, number).copy())


def write_gguf(folder: Path, to: Path, kinds: Mapping[str, str], tokenizer: Mapping[str, Any] | None = None) -> tuple[Path, Path]:
    """A GGUF file of a checkpoint, and the dense checkpoint of the same numbers. `kinds` are types by expressions for names; what
    matches none is F32."""
    config = json.loads((folder / "config.json").read_text())
    to.mkdir(parents=True, exist_ok=True)
    (to / "plain").mkdir()
    file, tensors = to / "model.gguf", load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(file, ARCHITECTURES[config["model_type"]])
    write_metadata(writer, config)
    write_tokenizer(writer, tokenizer or plain_tokenizer(config["vocab_size"]))
    plain: dict[str, Tensor] = {}
    stacks: dict[str, list[np.ndarray[Any, Any]]] = {}
    for name in sorted(tensors, key=_in_order):
        kind = next((kind for pattern, kind in kinds.items() if re.search(pattern, name)), "F32")
        raw, plain[name] = changed(tensors[name], name, kind, config)
        place = _EXPERT.fullmatch(name)
        there = f"blk.{place[2]}.ffn_{_EXPERTS[place[4]]}_exps.weight" if place else named(name, config)
        stacks.setdefault(there, []).append(raw)
        if place is None or int(place[3]) == experts(config) - 1:
            whole = np.stack(stacks[there]) if place else raw
            writer.add_tensor(there, whole, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(plain, to / "plain" / "model.safetensors", metadata={"format": "pt"})
    (to / "plain" / "config.json").write_text(json.dumps(config))
    return file, to / "plain"


def _in_order(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def experts(config: Mapping[str, Any]) -> int:
    """How many a layer has."""
    return int(config.get("num_local_experts") or config.get("num_experts") or 0)


def changed(value: Tensor, name: str, kind: str, config: Mapping[str, Any]) -> tuple[np.ndarray[Any, Any], Tensor]:
    """A tensor as GGUF stores it, and what it stands for under its own name. As llama.cpp's convert_hf_to_gguf.py does it."""
    pairs = config["model_type"] in ("llama", "mixtral") and ("q_proj" in name or "k_proj" in name)
    one = 1.0 if config["model_type"] == "gemma2" and name.endswith("norm.weight") else 0.0
    heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    if pairs:
        value = value.reshape(heads, 2, value.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(value.shape)
    if value.dim() == 2 and value.shape[0] == 1:
        value = value[0]
    if kind in ("F32", "F16", "BF16"):
        kept = (value + one).to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind])
        raw, plain = kept.view(torch.uint8).numpy() if kind == "BF16" else kept.numpy(), kept.float() - one
    else:
        raw, plain = encoded(value, kind)
    if pairs:
        plain = plain.reshape(heads, plain.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(plain.shape)
    return raw, plain.contiguous().view(1, -1) if "shared_expert_gate" in name else plain.contiguous()


def named(name: str, config: Mapping[str, Any]) -> str:
    """The package's name of a tensor."""
    own = name.replace("block_sparse_moe.gate", "mlp.gate")
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == ARCHITECTURES[config["model_type"]])
    known = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    found: str | None = known.get_name(own, try_suffixes=(".weight", ".bias"))
    assert found, name
    return found


def write_metadata(writer: Any, config: Mapping[str, Any]) -> None:
    """The sizes of a model."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_rope_dimension_count(size)
    writer.add_key_length(size)
    writer.add_value_length(size)
    if experts(config):
        writer.add_expert_count(experts(config))
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def plain_tokenizer(count: int) -> dict[str, Any]:
    """A vocabulary of so many tokens, of which the first are control tokens and bytes."""
    letters = [chr(each) for each in range(33, 127)]
    tokens = ["<pad>", "<eos>", *letters, "ab", *(f"word{number}" for number in range(count))][:count]
    types = [3, 3, *[1] * (count - 2)]
    return {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "types": types,
        "merges": ["a b"],
        "bos": 1,
        "eos": 1,
        "pad": 0,
    }


def write_tokenizer(writer: Any, tokenizer: Mapping[str, Any]) -> None:
    """The metadata of a tokenizer."""
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["types"])
    if "pre" in tokenizer:
        writer.add_tokenizer_pre(tokenizer["pre"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
    else:
        writer.add_token_merges(tokenizer["merges"])
    for name, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id), ("pad", writer.add_pad_token_id)):
        if name in tokenizer:
            add(tokenizer[name])
    if "eot" in tokenizer:
        writer.add_eot_token_id(tokenizer["eot"])
    if "begins" in tokenizer:
        writer.add_add_bos_token(tokenizer["begins"])
    if "template" in tokenizer:
        writer.add_chat_template(tokenizer["template"])


def tokenizer_of(folder: Path, pre: str) -> dict[str, Any]:
    """A model's byte-level tokenizer, with the name that llama.cpp has for how it splits texts."""
    fast = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    control = {token["id"]: token["content"] for token in fast["added_tokens"]}
    by_id = {id: token for token, id in fast["model"]["vocab"].items()} | control
    tokens = [by_id.get(id, f"[unused{id}]") for id in range(config["vocab_size"])]
    types = [3 if id in control else 1 if id in by_id else 5 for id in range(len(tokens))]
    merges = [each if isinstance(each, str) else " ".join(each) for each in fast["model"]["merges"]]
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    ids = {"bos": config["bos_token_id"], "eos": config["eos_token_id"][0], "eot": config["eos_token_id"][1]}
    made = {"model": "gpt2", "pre": pre, "tokens": tokens, "types": types, "merges": merges, "template": template, "begins": True}
    return made | ids | {"pad": config["pad_token_id"]}


def sentence_pieces() -> dict[str, Any]:
    """A vocabulary as SentencePiece's, with scores."""
    pieces = [
        "▁",
        "e",
        "t",
        "a",
        "h",
        "n",
        "o",
        "s",
        "▁t",
        "he",
        "▁the",
        "at",
        "▁a",
        "an",
        "▁an",
        "on",
        "st",
        "▁st",
        "est",
        "▁th",
        "at▁",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [0.0] * 259 + [-float(place) for place in range(len(pieces))]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return {"model": "llama", "tokens": tokens, "scores": scores, "types": types, "bos": 1, "eos": 2, "begins": True}
