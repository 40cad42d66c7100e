"""Self-check of a device's sampler: the argmax and draws over a few rows, compared with torch's operators."""

from __future__ import annotations

import torch

from tgi_core.engine.ahead.sampling import TorchSampler, uniforms
from tgi_core.engine.device_queue import StepSampler

_ROWS, _LIMIT = 8, 1e-4


def sampler_disagreement(sampler: StepSampler, device: torch.device, vocab_size: int = 70_001) -> str:
    """What differs from torch's sampler; empty if nothing does.

    Half of the rows draw, and one has a logit that is not finite. The vocabulary is no multiple of any chunk.
    """
    logits = torch.randn(_ROWS, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    logits[_ROWS - 1, 5] = float("nan")
    temperatures = torch.tensor([0.0, 0.7] * (_ROWS // 2), dtype=sampler.precision)
    chances = torch.from_numpy(uniforms(range(_ROWS), range(_ROWS)))
    on_device = [part.to(device) for part in (logits, temperatures, chances)]
    for drawing in (True,) if sampler.lean_draws else (True, False):  # a lean sampler is always given temperatures
        expected, expected_logprobs = TorchSampler(sampler.precision).choose(logits, temperatures if drawing else None, chances)
        found, logprobs = sampler.choose(on_device[0], on_device[1] if drawing else None, on_device[2])
        if found.tolist() != expected.tolist():
            return f"tokens {found.tolist()} differ from torch's {expected.tolist()}"
        difference = float((logprobs.cpu() - expected_logprobs)[:-1].abs().max())
        if not difference <= _LIMIT:
            return f"logprobs differ from torch's by {difference:.2g}"
    return ""
