"""Choosing plain rows' tokens on the device: the argmax, or a draw at a temperature. Nothing here waits for the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.engine.warping import Candidates


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tokens int64 [rows], −1 where a row's logits are not finite, and their logprobs float32 [rows]."""

    tokens: Tensor
    logprobs: Tensor


class StepSampler(Protocol):
    """A device's way to choose plain rows' tokens by the published formula. It can be captured."""

    lean_draws: bool
    """Whether draws cost next to nothing beside the argmax. Where they don't, steps without draws get graphs of their own."""

    def choose(self, logits: Tensor, temperatures: Tensor, targets: Tensor, draws: bool) -> Chosen:
        """Of logits [rows, vocabulary]. `temperatures` float32 [rows], 0 for the argmax; `targets` float32 [rows] are the uniform
        numbers of the rows that draw. Without `draws` all temperatures are 0."""


class TorchSampler:
    """In torch's operators. Draws are computed in `precision`: double, as on the host, where the device has it."""

    lean_draws = False

    def __init__(self, precision: torch.dtype = torch.float64) -> None:
        self._precision = precision

    def choose(self, logits: Tensor, temperatures: Tensor, targets: Tensor, draws: bool) -> Chosen:
        """See `StepSampler`."""
        scores = logits.float()
        low, high = torch.aminmax(scores, dim=-1)
        finite = torch.isfinite(low) & torch.isfinite(high)
        tokens = scores.argmax(-1)
        logprobs = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scores.logsumexp(-1)
        if draws:
            drawn = temperatures > 0
            safe = torch.where(drawn & finite, temperatures, 1).to(self._precision).unsqueeze(-1)
            wide = torch.where(finite.unsqueeze(-1), scores, 0).to(self._precision)
            places, chances = Candidates((wide / safe).log_softmax(-1), None).choose(targets.to(self._precision))
            tokens = torch.where(drawn, places, tokens)
            logprobs = torch.where(drawn, chances.float(), logprobs)
        return Chosen(torch.where(finite, tokens, -1), logprobs)
