"""Experts: gated MLPs of which each token runs a few, and how they are chosen (mixture of experts)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

NOT_ZERO = 1e-20
"""Added to the sum of sigmoids, as DeepSeek's router does: it may be 0."""


@dataclass(frozen=True, slots=True)
class Activation:
    """gate · σ(slope · gate) · (up + offset). With a `limit`, gates are at most that, and ups within it on both sides."""

    slope: float = 1.0
    offset: float = 0.0
    limit: float | None = None

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """Of float32 tensors of one shape."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.slope * gate) * (up + self.offset)


@dataclass(frozen=True, slots=True)
class Routing:
    """The `top` of `experts` with the largest weights, the softmax of the router's logits, or with `sigmoid` their sigmoids; `normalized`:
    the weights are divided by their sum. They are multiplied by `scale`.

    Group-limited routing (DeepSeek-AI 2024, arXiv 2405.04434 and 2412.19437) chooses from the best `kept_groups` of `groups` of adjacent
    experts; a group counts as much as its best expert, with `sigmoid` as its best two. The `shared` experts that follow are every token's.
    Their weight is 1, or with `gated` the sigmoid of one more logit.
    """

    experts: int
    top: int
    normalized: bool
    shared: int = 0
    gated: bool = False
    sigmoid: bool = False
    groups: int = 1
    kept_groups: int = 1
    scale: float = 1.0

    @property
    def chosen(self) -> int:
        """Experts of a token."""
        return self.top + self.shared

    @property
    def logits(self) -> int:
        """Logits of a token."""
        return self.experts + self.gated


@dataclass(frozen=True, slots=True)
class Chosen:
    """The experts of tokens: `ids` int32 and `weights` float32, both [tokens, chosen]."""

    ids: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Experts:
    """Weights on a device: `gate_up` [experts, 2 · inner, hidden], gates first, and `down` [experts, hidden, inner], contiguous; biases
    [experts, outputs] or None."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    activation: Activation = Activation()

    @property
    def count(self) -> int:
        """Experts."""
        return self.down.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        tensors = (self.gate_up, self.down, self.gate_up_bias, self.down_bias)
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors if tensor is not None)


class ExpertsKernel(Protocol):
    """Runs experts without waiting to learn which token has which; part of a decoder's `Operators`."""

    name: str

    def experts(self, hidden: Tensor, chosen: Chosen, experts: Experts) -> Tensor:
        """What each token's experts make of it, times their weights: hidden [tokens, hidden] → [tokens, chosen, hidden]."""

    def prepare_experts(self, experts: Experts) -> None:
        """Compile what any number of tokens needs for experts of these sizes."""


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Chosen:
    """Choose experts from logits [tokens, routing.logits], in plain torch. `correction` [experts], float32, is added to their weights, for
    the choice only."""
    scores = logits[:, : routing.experts].float()
    scores = scores.sigmoid() if routing.sigmoid else scores.softmax(-1)
    ids = _limited(scores if correction is None else scores + correction, routing).topk(routing.top, -1).indices
    weights = scores.gather(-1, ids)
    if routing.normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + (NOT_ZERO if routing.sigmoid else 0))
    weights = weights * routing.scale
    if routing.shared:
        one = logits[:, routing.experts :].float().sigmoid() if routing.gated else weights.new_ones(len(weights), 1)
        shared = torch.arange(routing.experts, routing.experts + routing.shared, device=ids.device)
        ids = torch.cat((ids, shared.expand(len(ids), -1)), -1)
        weights = torch.cat((weights, one.expand(-1, routing.shared)), -1)
    return Chosen(ids.to(torch.int32), weights)


def _limited(scores: Tensor, routing: Routing) -> Tensor:
    """Scores [tokens, experts] with −∞ in the groups that are not kept."""
    if routing.kept_groups == routing.groups:
        return scores
    by_group = scores.unflatten(-1, (routing.groups, -1))
    group_scores = by_group.topk(2, -1).values.sum(-1) if routing.sigmoid else by_group.amax(-1)
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, group_scores.topk(routing.kept_groups, -1).indices, True)
    return by_group.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)


def run_experts(hidden: Tensor, chosen: Chosen, experts: Experts) -> Tensor:
    """What each token's experts make of it, times their weights: hidden [tokens, hidden] → [tokens, chosen, hidden].

    In plain torch: every expert runs every token, so that the host need not know who chose what.
    """
    out = hidden.new_zeros(*chosen.ids.shape, hidden.shape[-1], dtype=torch.float32)
    for expert in range(experts.count):
        gate_up = F.linear(hidden, experts.gate_up[expert], _of(experts.gate_up_bias, expert)).float()
        inner = experts.activation(*gate_up.chunk(2, -1)).to(hidden.dtype)
        made = F.linear(inner, experts.down[expert], _of(experts.down_bias, expert)).float()
        out += made.unsqueeze(1) * torch.where(chosen.ids == expert, chosen.weights, 0).unsqueeze(-1)
    return out.to(hidden.dtype)


def _of(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]
