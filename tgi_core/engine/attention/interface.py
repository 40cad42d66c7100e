"""The function that transformers' attention modules call, and how it finds the running step.

Source: transformers' `AttentionInterface`. A name without a registered mask function gets no mask from transformers
(`masking_utils._preprocess_mask_arguments`), which is what a ragged step needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAME = "tgi_ragged"
"""The name of the attention function in transformers' table."""

TRACED = "tgi_traced"
"""The name that models get whose attention is traced: in transformers' tables, plain operators and a mask that nobody reads."""

INDEXED = "tgi_indexed"
"""The name that models get whose layers select positions by an index."""

HEAD_SHARD = "tgi_head_shard"
"""The attribute of an attention module that computes some of its heads: a `sharing.HeadShard`."""


CROSS = "tgi_cross"
"""The attribute of an attention module whose keys and values are of images: a `media.cross.CrossLayer`."""

_APART = 128


@dataclass(frozen=True, slots=True, eq=False)
class KeyBias:
    """What is added to the logits of a key for its position, as ALiBi does: `table` [query heads, positions], float32.

    Rows of the table are a multiple of 128 positions apart, so that kernels can read whole blocks. `slopes` [query heads] are given where
    each position adds the same: a table that was rounded has none.
    """

    table: Tensor
    slopes: Tensor | None

    @classmethod
    def of(cls, table: Tensor) -> KeyBias:
        """Find the slopes of a table whose first column is zero."""
        apart = F.pad(table, (0, -table.shape[1] % _APART)).contiguous()
        slopes = table[:, 1] if table.shape[1] > 1 else table[:, 0]
        line = slopes[:, None] * torch.arange(table.shape[1], device=table.device)
        return cls(apart[:, : table.shape[1]], slopes.contiguous() if torch.allclose(table, line, rtol=1e-4, atol=1e-5) else None)

    def heads(self, start: int, end: int) -> KeyBias:
        """The bias of some heads."""
        return KeyBias(self.table[start:end], None if self.slopes is None else self.slopes[start:end])

    def to(self, device: torch.device) -> KeyBias:
        """On another device."""
        return KeyBias(self.table.to(device), None if self.slopes is None else self.slopes.to(device))


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """The parameters of an attention call besides queries, keys and values.

    `window` is the number of positions a query sees, itself included. `chunk` divides the row into chunks that don't see each other.
    `sinks` holds one extra logit per query head. `selected` [tokens, count] are the positions that each of the step's tokens sees of those
    that it could, −1 for none.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    chunk: int | None = None
    sinks: Tensor | None = None
    bias: KeyBias | None = None
    selected: Tensor | None = None

    @property
    def span(self) -> int | None:
        """Positions that a query sees at most, itself included; None: all. A chunk is one, too: the row's last one is visible in part."""
        return min((limit for limit in (self.window, self.chunk) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """Flat tokens start…end − 1 of a step: those of as many rows of one token each if `batched`, else of one row.

    `visible` [rows, tokens of a row, positions] says which positions a token may see. `update` stores the index's keys of these tokens,
    [rows, tokens of a row, width], and returns those of all positions, [rows, positions, width].
    """

    start: int
    end: int
    batched: bool
    visible: Tensor
    update: Callable[[Tensor], Tensor]


class AttentionImpl(Protocol):
    """Computes the attention calls of a running model."""

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters) -> Tensor:
        """One layer: query [heads, tokens, width], key and value [kv_heads, tokens, width] → [tokens, heads, width]."""

    def indexed(self) -> Sequence[IndexedRows]:
        """The running rows of the next layer of the cache, which has an index's keys."""


class NotRagged(Exception):
    """A ragged step cannot compute the model's attention."""


_active: ContextVar[AttentionImpl] = ContextVar("tgi_attention")


@contextmanager
def use_attention(impl: AttentionImpl) -> Iterator[None]:
    """Let `impl` compute the attention calls made inside, by this thread."""
    token = _active.set(impl)
    try:
        yield
    finally:
        _active.reset(token)


def active_attention() -> AttentionImpl:
    """What computes attention calls now, in this thread. Raises NotRagged outside `use_attention`."""
    active = _active.get(None)
    if active is None:
        raise NotRagged("attention is called outside a step")
    return active


def register() -> None:
    """Register the functions with transformers. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(NAME, attention_forward)
    AttentionInterface.register(TRACED, sdpa_attention_forward)
    AttentionMaskInterface.register(TRACED, zero_mask)
    AttentionInterface.register(INDEXED, indexed_forward)
    AttentionMaskInterface.register(INDEXED, zero_mask)


def zero_mask(batch_size: int, kv_length: int, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor:
    """A mask that nobody reads, [batch, 1, queries, keys]: a model whose attention is traced expects one. Takes no memory."""
    positions = kwargs.get("cache_position")  # transformers 4
    queries, device = (kwargs["q_length"], kwargs["device"]) if positions is None else (positions.shape[0], positions.device)
    return torch.zeros((), dtype=dtype, device=device).expand(batch_size, 1, queries, kv_length)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query [1, heads, tokens, width], likewise keys and values → [1, tokens, heads, width]."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    looks = getattr(module, CROSS, None)
    if looks is not None:
        return looks.attend(query[0], key[0], value[0], scaling).unsqueeze(0), None
    parameters = AttentionParameters(
        scaling=scaling,
        window=kwargs.get("sliding_window") or _limit(module, "sliding_attention", "sliding_window"),
        softcap=kwargs.get("softcap"),
        chunk=_limit(module, "chunked_attention", "attention_chunk_size"),
        sinks=kwargs.get("s_aux"),
        selected=kwargs.get("selected"),
    )
    if attention_mask is not None:
        raise NotRagged("attention with a mask of the model's own")
    if kwargs.get("position_bias") is not None:
        raise NotRagged("attention with a position bias")
    # GPT-2 declares a single query as not causal, which makes no difference.
    if query.shape[2] > 1 and kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise NotRagged("attention that is not causal")
    impl, share = active_attention(), getattr(module, HEAD_SHARD, None)
    if share is None:
        out = impl.attend(module, query[0], key[0], value[0], parameters)
    else:
        out = share.attend(impl, module, query[0], key[0], value[0], parameters)
    return out.unsqueeze(0).contiguous(), None


def indexed_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The same for a layer with an index, which has selected `indices` [1, tokens, count]; the mask is `zero_mask`'s."""
    selected = None if indices is None else indices[0]
    return attention_forward(module, query, key, value, None, scaling, selected=selected, **kwargs)


def _limit(module: nn.Module, kind: str, field: str) -> int | None:
    """A field of the config, for a layer of that kind. Some models limit a layer only by its mask (Llama 4)."""
    config = getattr(module, "config", None)
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if not kinds or layer is None or layer >= len(kinds) or kinds[layer] != kind:
        return None
    return getattr(config, field, None)
