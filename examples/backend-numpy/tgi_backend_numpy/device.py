"""A Llama in plain NumPy. In shapes: n tokens of a step, h heads, k key heads, d a head's size, s slots of a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tgi_core.backend import InvalidModel, Memory, Unsupported
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.backend.sampling import Logits
from tgi_core.model_files import read_json, text_config

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_weights(model: Path) -> dict[str, Floats]:
    """All tensors of a directory, in float32. A safetensors file is its header's length, the header, and the data."""
    weights: dict[str, Floats] = {}
    for path in sorted(model.glob("*.safetensors")):
        try:
            content = path.read_bytes()
            start = 8 + int.from_bytes(content[:8], "little")
            header = json.loads(content[8:start])
            header.pop("__metadata__", None)
            weights |= {name: _tensor(content[start:], **entry) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidModel(f"{path}: damaged: {error}") from error
    return weights


def _tensor(data: bytes, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Floats:
    values = np.frombuffer(data[slice(*data_offsets)], STORED[dtype])
    if dtype == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32).reshape(shape)


class Device:
    """One Llama. Raises InvalidModel, Unsupported."""

    def __init__(self, model: Path, dtype: str) -> None:
        if dtype not in ("auto", "float32"):
            raise Unsupported(f"dtype {dtype}: this backend computes in float32")
        config = text_config(read_json(model / "config.json"))
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if config.get("model_type") != "llama" or rope.get("rope_type", "default") != "default":
            raise InvalidModel(f"{model / 'config.json'}: this backend runs llama with plain RoPE only")
        self._weights = read_weights(model)
        try:
            self.vocab_size, self.max_positions = config["vocab_size"], config["max_position_embeddings"]
            self._layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
            self._key_heads = config.get("num_key_value_heads") or heads
            self._head_size = config.get("head_dim") or config["hidden_size"] // heads
            self._epsilon = np.float32(config["rms_norm_eps"])
            self._embedding = self._weights["model.embed_tokens.weight"]
            self._head = self._embedding if config.get("tie_word_embeddings") else self._weights["lm_head.weight"]
            if sum(name.startswith("model.layers.") for name in self._weights) != 9 * self._layers:
                raise KeyError("a tensor of a layer")
        except KeyError as error:
            raise InvalidModel(f"{model}: {error} is missing") from error
        theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
        frequencies = theta ** (-np.arange(0, self._head_size, 2) / self._head_size)
        angles = np.arange(self.max_positions)[:, None, None] * np.tile(frequencies, 2)
        self._cos, self._sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def reserve(self, num_blocks: int, block_size: int) -> None:
        """Keys and values [layers, slots, k, d]; the slots of block 0 are not used."""
        shape = (2, self._layers, (num_blocks + 1) * block_size, self._key_heads, self._head_size)
        (self._keys, self._values), self._block_size = np.zeros(shape, np.float32), block_size

    def run(self, row_inputs: Sequence[RowInput]) -> list[Logits]:
        """One forward pass over the concatenated tokens of all rows; logits after each row's newest token and its drafts."""
        if not row_inputs:
            return []
        tables = [self._slots(row_input) for row_input in row_inputs]
        written = np.concatenate([table[row_input.start :] for row_input, table in zip(row_inputs, tables, strict=True)])
        positions = np.concatenate([np.arange(row_input.start, row_input.start + row_input.take) for row_input in row_inputs])
        ends = np.cumsum([row_input.take for row_input in row_inputs])
        x = self._embedding[[token for row_input in row_inputs for token in row_input.tokens]]
        for layer in range(self._layers):
            y = self._norm(x, f"layers.{layer}.input_layernorm")
            query, key, value = (self._heads(y, f"layers.{layer}.self_attn.{name}_proj") for name in "qkv")
            self._keys[layer, written] = self._rotate(key, positions)
            self._values[layer, written] = value
            rows = zip(np.split(self._rotate(query, positions), ends[:-1]), tables, strict=True)
            mixed = np.concatenate([self._attend(layer, queries, table) for queries, table in rows])
            x = x + self._project(mixed, f"layers.{layer}.self_attn.o_proj")
            y = self._norm(x, f"layers.{layer}.post_attention_layernorm")
            gate, up = (self._project(y, f"layers.{layer}.mlp.{name}_proj") for name in ("gate", "up"))
            x = x + self._project(gate / (1 + np.exp(-gate)) * up, f"layers.{layer}.mlp.down_proj")
        kept = np.concatenate([np.arange(-1 - len(row.drafts), 0) + end for row, end in zip(row_inputs, ends, strict=True)])
        logits = self._norm(x[kept], "norm") @ self._head.T
        return [dict(enumerate(scores)) for scores in logits.tolist()]

    def memory(self) -> tuple[Memory, ...]:
        """The KV cache."""
        return tuple(Memory(name, array.nbytes) for name, array in (("keys", self._keys), ("values", self._values)))

    def close(self) -> None:
        """Free everything."""
        self.reserve(0, 1)
        self._weights = {}

    def _slots(self, row_input: RowInput) -> Indices:
        """The slots of a row's positions 0…start + take - 1, by its table of blocks."""
        blocks, within = np.divmod(np.arange(row_input.start + row_input.take), self._block_size)
        return np.array(row_input.row.tables[0])[blocks] * self._block_size + within

    def _norm(self, x: Floats, name: str) -> Floats:
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self._epsilon) * self._weights[f"model.{name}.weight"]

    def _project(self, x: Floats, name: str) -> Floats:
        return x @ self._weights[f"model.{name}.weight"].T

    def _heads(self, x: Floats, name: str) -> Floats:
        """[n, hidden] to [n, heads, d]."""
        return self._project(x, name).reshape(len(x), -1, self._head_size)

    def _rotate(self, x: Floats, positions: Indices) -> Floats:
        """Apply RoPE to [n, heads, d]."""
        first, second = np.split(x, 2, -1)
        return x * self._cos[positions] + np.concatenate([-second, first], -1) * self._sin[positions]

    def _attend(self, layer: int, query: Floats, table: Indices) -> Floats:
        """The last queries [n, h, d] of one row over all its keys; each key head serves a group of query heads."""
        count, end = len(query), len(table)
        grouped = query.reshape(count, self._key_heads, -1, self._head_size)
        scores = np.einsum("nkgd,skd->kgns", grouped, self._keys[layer, table]) / np.sqrt(np.float32(self._head_size))
        scores[..., np.arange(end) > np.arange(end - count, end)[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return np.einsum("kgns,skd->nkgd", weights, self._values[layer, table]).reshape(count, -1)
