"""Conversion of the random models to GGUF files for llama.cpp, in bfloat16 or quantized. Runs in llama.cpp's environment.

python -m bench.peers.gguf_file NAME MODEL OUT TYPE
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from bench.shapes import SHAPES, Shape

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2"}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
LEAST = gguf.GGMLQuantizationType.Q8_0
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Read names and bfloat16 values from a safetensors file, as uint16 because NumPy has no bfloat16."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                first, last = (8 + length + offset for offset in entry["data_offsets"])
                yield name, np.frombuffer(data[first:last], dtype=np.uint16).reshape(entry["shape"])


def renamed(name: str) -> str:
    """llama.cpp's name of a tensor."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    number, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{LAYER[rest]}"


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Permute rows from [heads, 2, half] to [heads, half, 2]: llama.cpp's RoPE rotates adjacent pairs in a Llama's heads,
    transformers' rotates halves."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write(shape: Shape, model: Path, out: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Write the file, with matrices of `kind`. Embeddings, which are the head as well, have at least eight bits, as llama.cpp's own files
    do."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), ARCHITECTURES[config["model_type"]])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    _add_tokenizer(writer, model)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, bits in tensors(model / "model.safetensors"):
        projection = name.split(".")[-2]
        if config["model_type"] == "llama" and projection in heads:
            bits = interleaved(bits, heads[projection])
        if bits.ndim == 1:  # llama.cpp expects norms and biases in float32
            writer.add_tensor(renamed(name), _widened(bits))
        else:
            stored = LEAST if name in OUTSIDE and kind is gguf.GGMLQuantizationType.Q4_0 else kind
            writer.add_tensor(renamed(name), _encoded(bits, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _encoded(bits: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The bytes of a matrix of bfloat16, [rows, bytes]."""
    if kind is gguf.GGMLQuantizationType.BF16:
        return np.ascontiguousarray(bits).view(np.uint8)
    return gguf.quants.quantize(_widened(bits), kind)


def _widened(bits: np.ndarray) -> np.ndarray:
    """bfloat16 as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, model: Path) -> None:
    parts = json.loads((model / "tokenizer.json").read_text())
    special = {token["content"] for token in parts["added_tokens"]}
    vocab = sorted(parts["model"]["vocab"].items(), key=lambda item: item[1])
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token, _ in vocab]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    write(SHAPES[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), gguf.GGMLQuantizationType[sys.argv[4]])
