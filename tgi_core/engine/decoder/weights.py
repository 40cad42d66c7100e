"""The weights of a decoder table, found in a checkpoint by name, as views of its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import CacheScales
from tgi_core.engine.decoder.adapters import TableAdapter
from tgi_core.engine.decoder.experts import ExpertWeights, expert_tensors
from tgi_core.engine.decoder.latent import LatentSizes
from tgi_core.engine.decoder.table import DecoderTable, projections
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.quantization.rounding import head_rounding
from tgi_core.engine.quantization.stored import StoredWeight, StoredWeights
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.mapped import DTYPES, FilePlace

_PLAIN = ("F32", "F16", "BF16")
"""Dtypes of weights that are not quantized."""


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """A gated MLP; the bias of gate and up is that of both, one behind the other."""

    gate: Weight
    up: Weight
    gate_up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Latent attention: norms of latents, and projections from them. Without a latent of queries, its two are None."""

    query_norm: Tensor | None
    query: Weight | None
    kv_norm: Tensor
    kv: Weight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections are lists of weights [out, in] to be concatenated; a bias is that of the whole list, or None."""

    qkv: list[Weight]
    qkv_bias: Tensor | None
    output: Weight
    output_bias: Tensor | None
    mlp: MLPWeights | ExpertWeights
    attention_norm: Tensor
    mlp_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    sinks: Tensor | None = None
    """[heads]"""
    latent: LatentWeights | None = None
    """Of latent attention: `qkv` are then the projections that read the hidden state."""

    @property
    def dense(self) -> MLPWeights:
        """The MLP of a layer without experts. Raises UnsupportedFamily for others."""
        if isinstance(self.mlp, ExpertWeights):
            raise UnsupportedFamily("its MLPs are experts")
        return self.mlp


class DecoderWeights:
    """Reads the weights of a table. Unknown tensors in the checkpoint are refused, so that nothing is ignored silently."""

    def __init__(
        self, table: DecoderTable, stored: StoredWeights, dtype: torch.dtype, adapters: tuple[TableAdapter, ...] = ()
    ) -> None:
        self.table, self.dtype, self.adapters = table, dtype, adapters
        self._prefix = "model." if "model.embed_tokens.weight" in stored.by_name else ""
        count = len(table.layers)
        extra = (f"{self._prefix}layers.{index}." for index in range(count, count + table.extra_layers))
        apart = f"{self._prefix}mtp_layers.", "mtp.", *extra  # layers for multi-token prediction are no part of the table
        self._stored = stored.named({name: each for name, each in stored.by_name.items() if not name.startswith(apart)})
        self._check()

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters in the dtype that they run in, counting tied ones once."""
        names = self._stored.by_name.keys() - ({"lm_head.weight"} if self.table.tied else set())
        return sum(self._stored.by_name[name].num_elements for name in names) * self.dtype.itemsize

    def forget(self) -> None:
        """Drop the files' pages once the weights are packed; an embedding that is a view of a file is read again on access."""
        self._stored.forget()

    def cache_scales(self) -> dict[int, CacheScales]:
        """The layers' scales of an 8-bit KV cache, if the checkpoint has some. Raises InvalidModel for values that are no scales."""
        return self._stored.cache_scales

    def linears(self) -> Iterator[tuple[StoredWeight, str]]:
        """The weights of linear layers, and what each is rounded to at load; "" for none."""
        embedding, names = self._embedding_name, self._linear_names()
        for name in sorted(names - {embedding, "lm_head.weight"}):
            yield self._stored.by_name[name], self.quantize
        yield self._stored.by_name[embedding if self.table.tied else "lm_head.weight"], head_rounding(self.quantize)

    @property
    def quantize(self) -> str:
        """The format that weights inside the model are rounded to, as in OpenOptions."""
        return self._stored.quantize

    @property
    def quantized(self) -> bool:
        """Whether weights inside the model are quantized, in the files or at load."""
        return self._stored.format is not None or bool(self._stored.quantize)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the embedding in memory: none if it is a view of the file."""
        return 0 if self._embeds_from_file else self._embedding.num_elements * self.dtype.itemsize

    def bytes_beside(self, saved_bytes: int) -> int:
        """Bytes of weights that linear kernels keep `saved_bytes` smaller, including a tied head, and of the embedding, even if it
        is a view of the file."""
        embedding = self.table.vocab_size * self.table.hidden * self.dtype.itemsize
        return self.num_bytes - saved_bytes + (embedding if self.table.tied else 0)

    def embedding(self) -> Tensor:
        """[vocabulary, hidden]; a view of the file if the dtypes agree."""
        return self._tensor(self._embedding_name)

    def embedding_place(self) -> FilePlace | None:
        """Where it lies in a file; None if the dtypes differ."""
        return self._stored.place(self._embedding) if self._embeds_from_file else None

    @property
    def _embedding(self) -> StoredWeight:
        return self._stored.by_name[self._embedding_name]

    @property
    def _embedding_name(self) -> str:
        return f"{self._prefix}embed_tokens.weight"

    @property
    def _embeds_from_file(self) -> bool:
        return self._embedding.format is None and DTYPES[self._embedding.entry.dtype] is self.dtype

    def head(self) -> Weight:
        """The output layer [vocabulary, hidden]."""
        stored = self._stored.by_name[self._embedding_name if self.table.tied else "lm_head.weight"]
        return self._stored.head(stored, self.dtype)

    def final_norm(self) -> Tensor:
        """[hidden]."""
        return self._tensor(f"{self._prefix}norm.weight")

    def layer(self, index: int) -> LayerWeights:
        """The tensors of one layer."""
        at = f"{self._prefix}layers.{index}."
        latent, normed = self.table.latent, self.table.query_norm
        projections: tuple[str, ...] = ("qkv_proj",) if self.table.merged else ("q_proj", "k_proj", "v_proj")
        if latent is not None:
            projections = ("q_a_proj" if latent.query_rank else "q_proj", "kv_a_proj_with_mqa")
        return LayerWeights(
            qkv=[self._weight(f"{at}self_attn.{name}.weight") for name in projections],
            qkv_bias=self._bias([f"{at}self_attn.{name}.bias" for name in projections]),
            output=self._weight(f"{at}self_attn.o_proj.weight"),
            output_bias=self._bias([f"{at}self_attn.o_proj.bias"]),
            mlp=self._mlp(at, index),
            attention_norm=self._tensor(f"{at}input_layernorm.weight"),
            mlp_norm=self._tensor(f"{at}post_attention_layernorm.weight"),
            query_norm=self._tensor(f"{at}self_attn.q_norm.weight") if normed else None,
            key_norm=self._tensor(f"{at}self_attn.k_norm.weight") if normed else None,
            sinks=self._tensor(f"{at}self_attn.sinks") if self.table.sinks else None,
            latent=None if latent is None else self._latent(f"{at}self_attn.", latent),
        )

    def _latent(self, at: str, sizes: LatentSizes) -> LatentWeights:
        own = bool(sizes.query_rank)
        return LatentWeights(
            query_norm=self._tensor(f"{at}q_a_layernorm.weight") if own else None,
            query=self._weight(f"{at}q_b_proj.weight") if own else None,
            kv_norm=self._tensor(f"{at}kv_a_layernorm.weight"),
            kv=self._weight(f"{at}kv_b_proj.weight"),
        )

    def _mlp(self, at: str, index: int) -> MLPWeights | ExpertWeights:
        experts = self.table.experts_of(index)
        if experts is not None:
            return ExpertWeights(
                experts, lambda name: self._tensor(f"{at}{name}"), lambda name: self._tensor(f"{at}{name}", torch.float32)
            )
        inner = self.table.intermediate
        gate_up = self._weight(f"{at}mlp.gate_up_proj.weight") if self.table.merged else None
        return MLPWeights(
            gate=self._weight(f"{at}mlp.gate_proj.weight") if gate_up is None else gate_up.rows(0, inner),
            up=self._weight(f"{at}mlp.up_proj.weight") if gate_up is None else gate_up.rows(inner, 2 * inner),
            gate_up_bias=self._bias([f"{at}mlp.gate_proj.bias", f"{at}mlp.up_proj.bias"]),
            down=self._weight(f"{at}mlp.down_proj.weight"),
            down_bias=self._bias([f"{at}mlp.down_proj.bias"]),
        )

    def _tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        stored, dtype = self._stored.by_name[name], dtype or self.dtype
        return (self._stored.tensor(stored) if stored.format is None else self._stored.weight(stored, dtype).dequantize()).to(
            dtype
        )

    def _weight(self, name: str) -> Weight:
        return self._stored.linear(self._stored.by_name[name], self.dtype)

    def _bias(self, names: list[str]) -> Tensor | None:
        return torch.cat([self._tensor(name) for name in names]) if names[0] in self._stored.by_name else None

    def _check(self) -> None:
        """Check names and shapes. Raises UnsupportedFamily; the module path then reports what is wrong with the checkpoint."""
        wanted, linear = wanted_tensors(self.table, self._prefix), self._linear_names() | self._expert_names()
        for name, shape in wanted.items():
            stored = self._stored.by_name.get(name)
            if stored is None:
                raise UnsupportedFamily(f"its checkpoint lacks {name}")
            if stored.shape != shape:
                raise UnsupportedFamily(f"its tensor {name} is {stored.entry.dtype} {list(stored.shape)}")
            if (stored.format is not None and name not in linear) or (stored.format is None and stored.entry.dtype not in _PLAIN):
                raise UnsupportedFamily(f"its tensor {name} is {stored.entry.dtype}")
        known = wanted.keys() | {"lm_head.weight"}
        unknown = [name for name in self._stored.by_name if name not in known and not name.endswith("rotary_emb.inv_freq")]
        if unknown:
            raise UnsupportedFamily(f"its checkpoint holds {unknown[0]}")

    def _linear_names(self) -> set[str]:
        """The weights of linear layers, and the embedding; only they may be quantized."""
        layers = range(len(self.table.layers))
        return {"lm_head.weight", self._embedding_name} | {
            f"{self._prefix}layers.{index}.{name}.weight" for index in layers for name in projections(self.table, index)
        }

    def _expert_names(self) -> set[str]:
        """Weights of experts. They are read dense, in whatever format they are."""
        if self.table.experts is None:
            return set()
        layers, names = range(len(self.table.layers)), expert_tensors(self.table.experts, self.table.hidden)
        return {f"{self._prefix}layers.{index}.{name}" for index in layers for name in names if self.table.experts_of(index)}


def wanted_tensors(table: DecoderTable, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a table."""
    wanted: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (table.vocab_size, table.hidden),
        f"{prefix}norm.weight": (table.hidden,),
    }
    if not table.tied:
        wanted["lm_head.weight"] = (table.vocab_size, table.hidden)
    norms = {"input_layernorm": table.hidden, "post_attention_layernorm": table.hidden}
    if table.query_norm:
        norms |= {"self_attn.q_norm": table.head_size, "self_attn.k_norm": table.head_size}
    if table.latent is not None:
        norms |= {"self_attn.kv_a_layernorm": table.latent.kv_rank}
        norms |= {"self_attn.q_a_layernorm": table.latent.query_rank} if table.latent.query_rank else {}
    for index in range(len(table.layers)):
        at, experts = f"{prefix}layers.{index}.", table.experts_of(index)
        for name, (shape, bias) in projections(table, index).items():
            wanted[f"{at}{name}.weight"] = shape
            if bias:
                wanted[f"{at}{name}.bias"] = shape[:1]
        wanted |= {f"{at}{name}.weight": (size,) for name, size in norms.items()}
        if table.sinks:
            wanted[f"{at}self_attn.sinks"] = (table.heads,)
        if experts is not None:
            wanted |= {f"{at}{name}": shape for name, shape in expert_tensors(experts, table.hidden).items()}
    return wanted
