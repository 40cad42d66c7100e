"""A decoder table in plain torch, one row at a time: the reference that a device's own step is checked against at load."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.decoder.adapters import LoraSlice, TableAdapter
from tgi_core.engine.decoder.experts import ExpertWeights, reference_experts
from tgi_core.engine.decoder.latent import LATENT_EPSILON, LatentSizes
from tgi_core.engine.decoder.rotary import Rotary
from tgi_core.engine.decoder.table import DecoderLayer, DecoderTable
from tgi_core.engine.decoder.weights import DecoderWeights, LatentWeights, LayerWeights
from tgi_core.engine.quantization.weight import Dense, Weight, concatenated

_PIECE = 1 << 22
"""Elements of a quantized weight that are dequantized at a time: an output head is large."""


def reference_logits(weights: DecoderWeights, ids: list[int], adapter: TableAdapter | None = None) -> Tensor:
    """Logits [tokens, vocabulary] of a row, float32. GEMMs run in the weights' dtype, everything between them in float32."""
    table = weights.table
    angles = torch.arange(len(ids)).float().unsqueeze(1) * torch.tensor(table.rotary.frequencies).unsqueeze(0)
    with torch.inference_mode():
        stream = F.embedding(torch.tensor(ids), weights.embedding()).float() * table.embedding_scale
        for index, kind in enumerate(table.layers):
            layer = (
                weights.layer(index)
                if adapter is None
                else _merged(weights.layer(index), adapter.layer(index), table.intermediate)
            )
            normed = _rms_norm(stream, layer.attention_norm, table.epsilon)
            stream = stream + table.residual_scale * _attention(normed, layer, kind, table, angles)
            normed = _rms_norm(stream, layer.mlp_norm, table.epsilon)
            stream = stream + table.residual_scale * _mlp(normed, layer, table)
            weights.forget()
        return _linear(_rms_norm(stream, weights.final_norm(), table.epsilon), weights.head(), None) * table.logit_scale


def _merged(layer: LayerWeights, slices: dict[str, list[LoraSlice]], intermediate: int) -> LayerWeights:
    """A layer's weights with an adapter merged in."""
    mlp = layer.dense
    gate_up = _added(concatenated((mlp.gate, mlp.up)), slices["gate_up"])
    return replace(
        layer,
        qkv=[_added(concatenated(layer.qkv), slices["qkv"])],
        output=_added(layer.output, slices["output"]),
        mlp=replace(
            mlp,
            gate=gate_up.rows(0, intermediate),
            up=gate_up.rows(intermediate, 2 * intermediate),
            down=_added(mlp.down, slices["down"]),
        ),
    )


def _added(weight: Weight, slices: list[LoraSlice]) -> Weight:
    changed = weight.dequantize().to(torch.float32, copy=True)
    for each in slices:
        changed[each.first : each.first + each.lora_b.shape[1]] += (each.lora_a @ each.lora_b).t()
    return Dense.of(changed.to(weight.dtype))


def _attention(normed: Tensor, layer: LayerWeights, kind: DecoderLayer, table: DecoderTable, angles: Tensor) -> Tensor:
    query, key, value = _queries_keys_values(normed, layer, kind, table, angles)
    positions = torch.arange(normed.shape[0])
    hidden = positions.unsqueeze(0) > positions.unsqueeze(1)
    if kind.window is not None:
        hidden |= positions.unsqueeze(0) <= positions.unsqueeze(1) - kind.window
    group = table.heads // table.kv_heads
    scores = query @ key.repeat_interleave(group, 0).transpose(-1, -2) * table.attention_scale
    scores = scores.masked_fill(hidden, -torch.inf)
    if layer.sinks is not None:
        scores = torch.cat((scores, layer.sinks.float().view(-1, 1, 1).expand(-1, len(positions), 1)), -1)
    out = scores.softmax(-1)[..., : len(positions)] @ value.repeat_interleave(group, 0)
    return _linear(out.transpose(0, 1).flatten(1), layer.output, layer.output_bias)


def _queries_keys_values(
    normed: Tensor, layer: LayerWeights, kind: DecoderLayer, table: DecoderTable, angles: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Each [heads, tokens, size], rotated."""
    flat = _linear(normed, concatenated(layer.qkv), layer.qkv_bias)
    if table.latent is not None and layer.latent is not None:
        return _from_latents(flat, layer.latent, table.latent, table, angles)
    sizes = [table.heads * table.head_size, table.kv_heads * table.head_size, table.kv_heads * table.head_size]
    query, key, value = (part.unflatten(-1, (-1, table.head_size)).transpose(0, 1) for part in flat.split(sizes, -1))
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = (_rms_norm(x, w, table.epsilon) for x, w in ((query, layer.query_norm), (key, layer.key_norm)))
    if kind.rotary:
        query, key = (_rotated(x, angles, table.rotary) for x in (query, key))
    return query, key, value


def _from_latents(
    flat: Tensor, weights: LatentWeights, sizes: LatentSizes, table: DecoderTable, angles: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of latent attention, from the projections of the hidden state."""
    ahead, latent, shared = flat.split([flat.shape[-1] - sizes.kv_rank - sizes.rope, sizes.kv_rank, sizes.rope], -1)
    query = ahead
    if weights.query is not None and weights.query_norm is not None:
        query = _linear(_rms_norm(ahead, weights.query_norm, LATENT_EPSILON), weights.query, None)
    query = query.unflatten(-1, (table.heads, sizes.key)).transpose(0, 1)
    both = _linear(_rms_norm(latent, weights.kv_norm, LATENT_EPSILON), weights.kv, None)
    key, value = both.unflatten(-1, (table.heads, -1)).transpose(0, 1).split([sizes.nope, sizes.value], -1)

    def turned(part: Tensor) -> Tensor:
        apart = part.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) if sizes.interleaved else part
        return _rotated(apart, angles, table.rotary)

    query = torch.cat((query[..., : sizes.nope], turned(query[..., sizes.nope :])), -1)
    return query, torch.cat((key, turned(shared).expand(table.heads, -1, -1)), -1), value


def _mlp(normed: Tensor, layer: LayerWeights, table: DecoderTable) -> Tensor:
    mlp = layer.mlp
    if isinstance(mlp, ExpertWeights):
        return reference_experts(normed, mlp)
    gate, up = (_linear(normed, weight, None) for weight in (mlp.gate, mlp.up))
    if mlp.gate_up_bias is not None:
        gate, up = gate + mlp.gate_up_bias[: table.intermediate], up + mlp.gate_up_bias[table.intermediate :]
    return _linear(F.silu(gate) * up, mlp.down, mlp.down_bias)


def _linear(input: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    step = weight.shape[0] if isinstance(weight, Dense) else max(1, _PIECE // weight.shape[1])
    parts = (weight.rows(first, first + step).dequantize() for first in range(0, weight.shape[0], step))
    out = torch.cat([F.linear(input.to(weight.dtype), part) for part in parts], -1).float()
    return out if bias is None else out + bias.float()


def _rms_norm(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return input * torch.rsqrt(input.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def _rotated(heads: Tensor, angles: Tensor, rotary: Rotary) -> Tensor:
    """heads [heads, tokens, head size], the first `rotary.size` elements of each rotated."""
    size = rotary.size
    first, second, rest = heads.split([size // 2, size // 2, heads.shape[-1] - size], -1)
    cosine, sine = rotary.scale * angles.cos(), rotary.scale * angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), -1)
