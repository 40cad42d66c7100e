"""A decoder table's weights on a device, in the form that a step uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgi_core.backend import Progress
from tgi_core.engine.attention.cache import CacheScales, LayerShape
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.provider import AttentionLayer
from tgi_core.engine.decoder.experts import ExpertWeights
from tgi_core.engine.decoder.latent import LATENT_EPSILON
from tgi_core.engine.decoder.operators import HeadNorms, Heads, HeadSizes, LatentHeads
from tgi_core.engine.decoder.table import DecoderTable
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights, LayerWeights, MLPWeights
from tgi_core.engine.experts import Experts, Routing
from tgi_core.engine.quantization.linear import Linear, Linears
from tgi_core.engine.quantization.weight import Dense, Weight, concatenated


@dataclass(frozen=True, slots=True)
class LoadedMLP:
    """A gated MLP, with merged gate and up projections."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LoadedExperts:
    """Experts, and the router that chooses them; a shared expert's gate is the router's last row. A tensor [experts, hidden] is a router in
    float32, whose choice the `correction` [experts] changes."""

    router: Linear | Tensor
    routing: Routing
    experts: Experts
    correction: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LoadedLayer:
    """One layer, with merged qkv projections."""

    attention_norm: Tensor
    qkv: Linear
    heads: Heads | LatentHeads
    attention: AttentionParameters
    output: Linear
    mlp_norm: Tensor
    mlp: LoadedMLP | LoadedExperts

    @property
    def dense(self) -> LoadedMLP:
        """The MLP of a layer without experts. Raises UnsupportedFamily for others."""
        if isinstance(self.mlp, LoadedExperts):
            raise UnsupportedFamily("its MLPs are experts")
        return self.mlp


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    """A decoder on one device."""

    table: DecoderTable
    embedding: Tensor
    layers: tuple[LoadedLayer, ...]
    final_norm: Tensor
    head: Linear


def attention_layers(
    table: DecoderTable, scales: Mapping[int, CacheScales] | None = None, device: torch.device | None = None
) -> list[AttentionLayer]:
    """The attention layers of a table; `scales` are those of an 8-bit cache by the number of the layer. Where the table has sinks, zeros
    on the device stand for them."""
    sinks = torch.zeros(table.heads, device=device) if table.sinks else None
    layers = []
    for index, kind in enumerate(table.layers):
        own = (scales or {}).get(index, CacheScales())
        shape = LayerShape(table.kv_heads, table.head_size, table.value_size, kind.window or None, own)
        parameters = AttentionParameters(table.attention_scale, kind.window, sinks=sinks)
        layers.append(AttentionLayer(shape, table.heads, parameters))
    return layers


def load_decoder(weights: DecoderWeights, linears: Linears, progress: Progress) -> LoadedDecoder:
    """Copy a table's weights from their files to the device, tensor by tensor. Raises Unsupported if no kernel supports one."""
    table, count, device = weights.table, len(weights.table.layers), linears.device
    cos_sin = _cos_sin(table, device)
    embedding = weights.embedding().to(device, copy=True)
    layers = []
    for index, asked in enumerate(attention_layers(table)):
        layers.append(_layer(table, index, weights.layer(index), asked, cos_sin, linears))
        progress("loading weights", index + 1, count, "step")
    return LoadedDecoder(
        table=table,
        embedding=embedding,
        layers=tuple(layers),
        final_norm=weights.final_norm().to(device, copy=True),
        head=linears.load(Dense.of(embedding) if table.tied else weights.head().to(device, copy=True)),
    )


def _layer(
    table: DecoderTable, index: int, found: LayerWeights, asked: AttentionLayer, cos_sin: Tensor, linears: Linears
) -> LoadedLayer:
    device = cos_sin.device
    return LoadedLayer(
        attention_norm=found.attention_norm.to(device, copy=True),
        qkv=_linear(found.qkv, found.qkv_bias, linears),
        heads=_heads(table, index, found, cos_sin, linears),
        attention=replace(asked.parameters, sinks=None if found.sinks is None else found.sinks.float().to(device, copy=True)),
        output=_linear([found.output], found.output_bias, linears),
        mlp_norm=found.mlp_norm.to(device, copy=True),
        mlp=_mlp(found.mlp, found.attention_norm.dtype, linears),
    )


def _heads(table: DecoderTable, index: int, found: LayerWeights, cos_sin: Tensor, linears: Linears) -> Heads | LatentHeads:
    device, norms, latent = cos_sin.device, None, found.latent
    if table.latent is not None and latent is not None:
        return LatentHeads(
            table.latent,
            table.heads,
            cos_sin,
            None if latent.query_norm is None else latent.query_norm.to(device, copy=True),
            None if latent.query is None else _linear([latent.query], None, linears),
            latent.kv_norm.to(device, copy=True),
            _linear([latent.kv], None, linears),
            LATENT_EPSILON,
        )
    if found.query_norm is not None and found.key_norm is not None:
        norms = HeadNorms(found.query_norm.to(device, copy=True), found.key_norm.to(device, copy=True), table.epsilon)
    sizes = HeadSizes(table.heads, table.kv_heads, table.head_size)
    return Heads(sizes, cos_sin if table.layers[index].rotary else None, norms)


def _mlp(found: MLPWeights | ExpertWeights, dtype: torch.dtype, linears: Linears) -> LoadedMLP | LoadedExperts:
    if isinstance(found, MLPWeights):
        return LoadedMLP(
            _linear([found.gate, found.up], found.gate_up_bias, linears), _linear([found.down], found.down_bias, linears)
        )
    (router, bias), correction, device = found.router(), found.correction(), linears.device
    experts = found.load(router.shape[1], dtype, device)
    if found.table.wide_router:
        correction = None if correction is None else correction.to(device, copy=True)
        return LoadedExperts(router.to(device, copy=True), found.table.routing, experts, correction)
    return LoadedExperts(_linear([Dense.of(router)], bias, linears), found.table.routing, experts)


def _linear(weights: Sequence[Weight], bias: Tensor | None, linears: Linears) -> Linear:
    """A linear layer over concatenated weights [out, in]; they are concatenated on the device, which has the faster memory."""
    whole = concatenated([weight.to(linears.device, copy=True) for weight in weights])
    return linears.load(whole, None if bias is None else bias.to(linears.device, copy=True))


def _cos_sin(table: DecoderTable, device: torch.device) -> Tensor:
    """RoPE's table [positions, size]: cosines, then sines. Computing it in each layer would take one more kernel."""
    angles = torch.arange(table.max_positions, device=device).float().unsqueeze(1)
    angles = angles * torch.tensor(table.rotary.frequencies, device=device)
    return torch.cat((angles.cos(), angles.sin()), -1) * table.rotary.scale
