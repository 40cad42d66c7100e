"""Intel's attention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class FusedSDPA(torch.autograd.Function):
    """Attention of q [batch, heads, queries, width] over k, v [batch, KV heads, keys, width]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        softmax_mode: str,
        recompute_mode: bool | None,
        valid_seq_len: Tensor | None,
        seq_padding_type: str,
    ) -> Tensor:
        """Eleven arguments, by place."""
        assert q.dim() == k.dim() == v.dim() == 4 and dropout_p == 0 and softmax_mode in ("fast", "fp32")
        assert seq_padding_type in ("left", "right") and (attn_mask is None or attn_mask.dtype is q.dtype)
        assert valid_seq_len is None or (is_causal and attn_mask is None)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
