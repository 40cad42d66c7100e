"""The function that transformers' attention modules call, and how it finds the running step.

Source: transformers' `AttentionInterface`. A name without a registered mask function gets no mask from transformers
(`masking_utils._preprocess_mask_arguments`), which is what a ragged step needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

NAME = "tgi_ragged"
"""The name of the attention function in transformers' table."""

HEAD_SHARD = "tgi_head_shard"
"""The attribute of an attention module that computes some of its heads: a `sharing.HeadShard`."""


CROSS = "tgi_cross"
"""The attribute of an attention module whose keys and values are of images: a `media.cross.CrossLayer`."""


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """The parameters of an attention call besides queries, keys and values.

    `window` is the number of positions a query sees, itself included. `chunk` divides the row into chunks that don't see each other.
    `sinks` holds one extra logit per query head.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    chunk: int | None = None
    sinks: Tensor | None = None

    @property
    def span(self) -> int | None:
        """Positions that a query sees at most, itself included; None: all. A chunk is one, too: the row's last one is visible in part."""
        return min((limit for limit in (self.window, self.chunk) if limit is not None), default=None)


class AttentionImpl(Protocol):
    """Computes the attention calls of a running model."""

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, parameters: AttentionParameters) -> Tensor:
        """One layer: query [heads, tokens, width], key and value [kv_heads, tokens, width] → [tokens, heads, width]."""


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


def register() -> None:
    """Register the function with transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention_forward)


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
    )
    if attention_mask is not None:
        raise NotRagged("attention with a mask of the model's own")
    if kwargs.get("position_bias") is not None:
        raise NotRagged("attention with a position bias")
    # GPT-2 declares a single query as not causal, which makes no difference.
    if query.shape[2] > 1 and kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise NotRagged("attention that is not causal")
    impl, share = _active.get(), getattr(module, HEAD_SHARD, None)
    if share is None:
        out = impl.attend(module, query[0], key[0], value[0], parameters)
    else:
        out = share.attend(impl, module, query[0], key[0], value[0], parameters)
    return out.unsqueeze(0).contiguous(), None


def _limit(module: nn.Module, kind: str, field: str) -> int | None:
    """A field of the config, for a layer of that kind. Some models limit a layer only by its mask (Llama 4)."""
    config = getattr(module, "config", None)
    kinds, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if not kinds or layer is None or layer >= len(kinds) or kinds[layer] != kind:
        return None
    return getattr(config, field, None)
