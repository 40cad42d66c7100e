"""Self-check of a device's sampler: the argmax and draws over a few rows, compared with torch's operators."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend import Sampling
from tgi_core.engine.ahead.sampling import TorchSampler, seed_words, uniforms
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.warping import warp

_ROWS, _LIMIT = 8, 1e-4
_FILTERED = (
    Sampling(True, 0.7, top_k=50),
    Sampling(True, 1.3, top_p=0.9),
    Sampling(True, 1.0, min_p=0.05),
    Sampling(True, 0.9, top_k=40, top_p=0.95, min_p=0.02),
)


def sampler_disagreement(sampler: StepSampler, device: torch.device, vocab_size: int = 70_001) -> str:
    """What differs from torch's sampler; empty if nothing does.

    Half of the rows draw, and one has a logit that is not finite. The vocabulary is no multiple of any chunk.
    """
    logits = torch.randn(_ROWS, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    logits[_ROWS - 1, 5] = float("nan")
    temperatures = torch.tensor([0.0, 0.7] * (_ROWS // 2), dtype=sampler.precision)
    chances = torch.from_numpy(uniforms(seed_words(range(_ROWS)), np.arange(_ROWS)))
    on_device = [part.to(device) for part in (logits, temperatures, chances)]
    neutral = RowFilters.of([Sampling()] * _ROWS, vocab_size, sampler.precision, device) if sampler.filters else None
    for drawing in (True,) if sampler.lean_draws else (True, False):  # a lean sampler is always given temperatures
        expected = TorchSampler(sampler.precision).choose(logits, temperatures if drawing else None, chances)
        found = sampler.choose(on_device[0], on_device[1] if drawing else None, on_device[2], neutral)
        if difference := _difference(found, expected):
            return difference
    return _filter_disagreement(sampler, device, logits[: len(_FILTERED)], chances[: len(_FILTERED)]) if sampler.filters else ""


def _filter_disagreement(sampler: StepSampler, device: torch.device, logits: Tensor, chances: Tensor) -> str:
    temperatures = torch.tensor([sampling.temperature for sampling in _FILTERED], dtype=sampler.precision)
    filters = RowFilters.of(_FILTERED, logits.shape[-1], sampler.precision, device)
    found = sampler.choose(logits.to(device), temperatures.to(device), chances.to(device), filters)
    difference = _difference(found, warp(logits.double(), _FILTERED).choose(chances.double()))
    return f"with filters, {difference}" if difference else ""


def _difference(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> str:
    """Rows without a token are not compared by their logprobs."""
    if found[0].tolist() != expected[0].tolist():
        return f"tokens {found[0].tolist()} differ from torch's {expected[0].tolist()}"
    difference = float((found[1].cpu() - expected[1])[expected[0] >= 0].abs().max())
    return "" if difference <= _LIMIT else f"logprobs differ from torch's by {difference:.2g}"
