"""Watermarking: the greenlists of `tgi_core.backend.watermark`, drawn by torch and cached by previous token."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tgi_core.backend import Sampling
from tgi_core.backend.watermark import HASH_KEY


def add_watermark(scores: Tensor, previous: int, sampling: Sampling) -> None:
    """Add the bias to the greenlist in the scores [vocabulary] of one row, in place."""
    ids = _greenlist(previous, scores.shape[-1], sampling.watermark_gamma)
    scores[ids.to(scores.device)] += sampling.watermark


@lru_cache(maxsize=64)
def _greenlist(previous: int, vocab_size: int, gamma: float) -> Tensor:
    order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(HASH_KEY * previous))
    return order[: int(vocab_size * gamma)].clone()
