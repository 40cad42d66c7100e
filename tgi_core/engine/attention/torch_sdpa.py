"""Attention over gathered blocks in plain torch: runs on any device, and is the reference for faster providers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.attention.cache import LayerCache, LayerShape, PagedLayer, movable
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import DecodeRows, PrefillRow, StepMetadata
from tgi_core.engine.attention.plain import PlainAttention

QUERIES = 256
"""Number of queries whose scores are in memory at a time, if the scores must be stored."""


class TorchAttention(PlainAttention):
    """The provider `torch`."""

    name = "torch"
    sees_ahead = True
    kv_cache_dtypes: tuple[torch.dtype, ...] = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """It supports every layer."""
        return ""

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] over what lies in the cache → [tokens, heads, value width]."""
        if not isinstance(cache, LayerCache):
            raise TypeError(f"a cache of {type(cache).__name__}, which another provider made")
        scales, outputs = cache.scales, []
        if scales.key != 1:
            parameters = replace(parameters, scaling=parameters.scaling * scales.key)
        if step.decode is not None:
            outputs.append(_decode(query[:, : step.decode.count], cache, step, step.decode, parameters))
        outputs += [_prefill(query[:, row.start : row.end], cache, step, row, parameters) for row in step.prefill]
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out if scales.value == 1 else out * scales.value


def _decode(query: Tensor, cache: LayerCache, step: StepMetadata, rows: DecodeRows, parameters: AttentionParameters) -> Tensor:
    """All decode rows at once, padded to the longest. Query heads that share a KV head become queries of one head."""
    heads, count, width = query.shape
    kv_heads = cache.keys.shape[2]
    tables = rows.tables.flatten()
    keys, values = (
        gathered(kept, tables, query.dtype).unflatten(0, (count, -1))[:, : rows.max_length].transpose(1, 2)
        for kept in (cache.keys, cache.values)
    )
    grouped = query.transpose(0, 1).reshape(count, kv_heads, heads // kv_heads, width)
    key = ("decode", parameters.window, parameters.chunk)
    if key not in step.masks:
        step.masks[key] = _decode_mask(rows, parameters, query.dtype)
    mask = _narrowed(step.masks[key], parameters, slice(count), rows.max_length, query.dtype)
    if mask is not None and mask.ndim == 2:
        mask = mask[:, None, None]
    sinks = None if parameters.sinks is None else parameters.sinks.view(1, kv_heads, -1, 1)
    bias = None if parameters.bias is None else parameters.bias.table[:, : rows.max_length].view(1, kv_heads, -1, rows.max_length)
    out = scaled_attention(grouped, keys, values, mask, parameters, sinks, bias)
    return out.reshape(count, heads, -1)


def _decode_mask(rows: DecodeRows, parameters: AttentionParameters, dtype: torch.dtype) -> Tensor | None:
    """[rows, 1, 1, positions] to add to the scores: which positions each row sees; None when every row sees all of them."""
    if rows.equal and _sees_all(parameters, rows.max_length):
        return None
    last = rows.lengths.unsqueeze(1) - 1
    visible = _visible(last, torch.arange(rows.max_length, device=last.device), parameters)
    return _additive(visible, dtype)[:, None, None, :]


def _prefill(query: Tensor, cache: LayerCache, step: StepMetadata, row: PrefillRow, parameters: AttentionParameters) -> Tensor:
    heads, count, _ = query.shape
    length = row.past + count
    kv_heads = cache.keys.shape[2]
    keys, values = (
        gathered(kept, row.table, query.dtype)[:length].transpose(0, 1).unsqueeze(0) for kept in (cache.keys, cache.values)
    )
    group = heads // kv_heads
    if group > 1:
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    query, spans, prompt = query.unsqueeze(0), step.spans.get(row.start, ()), step.prompts.get(row.start, 0)
    if row.past == 0 and not spans and not prompt and _plain(parameters, length):
        # SDPA skips what a causal mask hides: half of the work.
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=parameters.scaling)[0].transpose(0, 1)
    key = ("prefill", row.start, parameters.window, parameters.chunk)
    if key not in step.masks:
        queries = torch.arange(row.past, length, device=query.device).unsqueeze(1)
        visible = _visible(queries, torch.arange(length, device=query.device), parameters, spans, prompt)
        step.masks[key] = _additive(visible, query.dtype)
    sinks = None if parameters.sinks is None else parameters.sinks.view(1, heads, 1, 1)
    bias = None if parameters.bias is None else parameters.bias.table[None, :, None, :length]
    mask = _narrowed(step.masks[key], parameters, slice(row.start, row.end), length, query.dtype)
    return scaled_attention(query, keys, values, mask, parameters, sinks, bias)[0].transpose(0, 1)


def _narrowed(
    mask: Tensor | None, parameters: AttentionParameters, tokens: slice, positions: int, dtype: torch.dtype
) -> Tensor | None:
    """A mask that also hides what an index did not select for these flat tokens."""
    if parameters.selected is None:
        return mask
    chosen = _additive(selected_mask(parameters.selected[tokens], positions), dtype)
    return chosen if mask is None else mask + chosen.view(*chosen.shape[:1], *(1,) * (mask.ndim - 2), positions)


def _plain(parameters: AttentionParameters, length: int) -> bool:
    """Whether nothing but causality hides any of `length` positions, and scores are used as they are."""
    return _sees_all(parameters, length) and all(
        x is None for x in (parameters.softcap, parameters.sinks, parameters.bias, parameters.selected)
    )


def _sees_all(parameters: AttentionParameters, length: int) -> bool:
    """Whether window and chunk hold `length` positions."""
    return all(limit is None or limit >= length for limit in (parameters.window, parameters.chunk))


def gathered(blocks: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """[positions, kv_heads, width] of the blocks in `table`."""
    return movable(blocks).index_select(0, table).flatten(0, 1).view(blocks.dtype).to(dtype)


def _visible(
    queries: Tensor, keys: Tensor, parameters: AttentionParameters, spans: Sequence[tuple[int, int]] = (), prompt: int = 0
) -> Tensor:
    """The key positions that a query at a position sees: causal or in the same span, within its window, within its chunk; and those of a
    prompt of so many tokens which is seen whole, if it is in it."""
    mask = keys <= queries
    for start, end in spans:
        mask = mask | ((keys >= start) & (keys < end) & (queries >= start) & (queries < end))
    if parameters.window is not None:
        mask = mask & (keys > queries - parameters.window)
    if parameters.chunk is not None:
        mask = mask & (keys >= queries // parameters.chunk * parameters.chunk)
    return mask | ((keys < prompt) & (queries < prompt)) if prompt else mask


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where visible, minus infinity elsewhere: made once per step; SDPA would convert a bool mask in every layer."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def scaled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    parameters: AttentionParameters,
    sinks: Tensor | None,
    bias: Tensor | None = None,
) -> Tensor:
    """Softmax attention [rows, heads, queries, width] with what SDPA has no arguments for: a soft cap, sinks, and a bias [1, heads, queries
    or 1, keys] in float32, of which a narrower dtype would lose too much."""
    if parameters.softcap is None and sinks is None and bias is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=parameters.scaling)
    parts = []
    for start in range(0, query.shape[2], QUERIES):
        some = slice(start, start + QUERIES)
        added = [each if each.shape[-2] == 1 else each[..., some, :] for each in (mask, bias) if each is not None]
        parts.append(_scored(query[:, :, some], key, value, added, parameters, sinks))
    return torch.cat(parts, 2)


def _scored(
    query: Tensor, key: Tensor, value: Tensor, added: Sequence[Tensor], parameters: AttentionParameters, sinks: Tensor | None
) -> Tensor:
    scores = query.float() @ key.float().transpose(-1, -2) * parameters.scaling
    if parameters.softcap is not None:
        scores = torch.tanh(scores / parameters.softcap) * parameters.softcap
    for each in added:
        scores = scores + each
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(query.dtype)


def selected_mask(selected: Tensor, positions: int) -> Tensor:
    """[tokens, positions]: which of a row's first positions are among those selected [tokens, count], where −1 is none."""
    mask = torch.zeros(selected.shape[0], positions + 1, dtype=torch.bool, device=selected.device)
    inside = torch.where((selected < 0) | (selected >= positions), positions, selected)
    return mask.scatter_(1, inside.long(), True)[:, :positions]
