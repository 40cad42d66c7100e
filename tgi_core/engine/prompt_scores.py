"""Logprobs of prompt tokens, from hidden states, in chunks: the logits of a whole prompt would take more memory than the model's layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 512
"""Positions whose logits and logprobs exist at a time."""


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Flat tokens `places` of a step whose logits give the logprobs of the prompt tokens `following` them; int64 [scored] each."""

    places: Tensor
    following: Tensor


def prompt_logprobs(head: Callable[[Tensor], Tensor], hidden: Tensor, following: Tensor) -> Tensor:
    """Logprobs float32 [scored] of the tokens `following` [scored], one after each of the states `hidden` [scored, hidden]; `head`
    computes logits.

    Only enqueues.
    """
    parts = [
        head(part).float().log_softmax(-1).gather(-1, wanted)
        for part, wanted in zip(hidden.split(CHUNK), following.unsqueeze(-1).split(CHUNK), strict=True)
    ]
    return torch.cat(parts).squeeze(-1)
