"""Self-check of a device's sampling from processed logits, compared with the host's sampler."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend import OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.engine.ahead.sampling import seed_words, uniforms
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.logits_processing import IN_PROMPT, ProcessedInputs, can_process, needs_counts
from tgi_core.engine.row_filters import RowFilters
from tgi_core.engine.sampler import sample

_LIMIT = 1e-4
_TOKENS, _PROMPT_LEN = [5, 9, 5, 70, 9, 9], 3
_SAMPLINGS = (
    Sampling(repetition_penalty=1.3, logit_bias=((7, 2.5),)),
    Sampling(True, 0.8, frequency_penalty=0.4, presence_penalty=-0.3, top_k=40),
    Sampling(True, 1.2, typical_p=0.8),
    Sampling(True, 0.7, repetition_penalty=0.9, top_p=0.9),
)
_TOP = 2


def processing_disagreement(sampler: StepSampler, device: torch.device, vocab_size: int = 70_001) -> str:
    """What differs from the host's sampler over a few rows, every other one of which has a mask; empty if nothing does."""
    want = OutputOptions(top_n=_TOP)
    requests = [
        Request(id, tuple(_TOKENS), _PROMPT_LEN, 0, ((),), 1, sampling, want, id % 2 == 0)
        for id, sampling in enumerate(_SAMPLINGS)
    ]
    rows = [RowState(request, list(_TOKENS), len(_TOKENS), ([],)) for request in requests]
    rows = [row for row in rows if can_process(row, sampler.precision)]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(rows), vocab_size, generator=generator) * 3
    masks = torch.rand(len(rows), vocab_size, generator=generator) < 0.5
    allowed = masks | ~torch.tensor([[row.request.masked] for row in rows])
    expected = sample(logits, rows, allowed)
    counts = torch.zeros(len(rows), vocab_size, dtype=torch.int32)
    for token in _TOKENS[_PROMPT_LEN:]:
        counts[:, token] += 1
    counts[:, _TOKENS[:_PROMPT_LEN]] |= IN_PROMPT
    newest = torch.zeros(len(rows), dtype=torch.int64, device=device)
    made = torch.zeros(2 * len(rows) * (1 + _TOP), dtype=torch.int32, device=device)
    inputs = _inputs(rows, masks, sampler.precision, device)
    sampler.choose_processed(logits.to(device), inputs, counts.to(device), newest, made, typical=True)
    words = made.cpu().numpy()
    tokens, top = words[: len(rows)].tolist(), words[2 * len(rows) :][: _TOP * len(rows)].reshape(-1, _TOP).tolist()
    wanted = [[token.id for token in each] for each in expected.top]
    if (tokens, top, newest.tolist()) != (expected.tokens, wanted, tokens):
        return f"from processed logits, tokens {tokens} of {top} differ from the host's {expected.tokens} of {wanted}"
    logprobs = words[len(rows) : 2 * len(rows)].view(np.float32)
    difference = float(np.abs(logprobs - np.array(expected.logprobs)).max())
    return "" if difference <= _LIMIT else f"from processed logits, logprobs differ from the host's by {difference:.2g}"


def _inputs(rows: list[RowState], masks: Tensor, precision: torch.dtype, device: torch.device) -> ProcessedInputs:
    samplings, count = [row.request.sampling for row in rows], len(rows)

    def tensor(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    def floats(name: str) -> Tensor:
        return tensor([getattr(sampling, name) for sampling in samplings], torch.float32)

    bits = np.packbits(np.pad(masks.numpy(), ((0, 0), (0, -masks.shape[1] % 32))), axis=1, bitorder="little")
    chances = uniforms(seed_words(sampling.seed for sampling in samplings), np.full(count, len(_TOKENS)))
    biases = [sampling.logit_bias for sampling in samplings]
    return ProcessedInputs(
        temperatures=tensor([sampling.temperature if sampling.do_sample else 0.0 for sampling in samplings], precision),
        filters=RowFilters.of(samplings, masks.shape[1], precision, device),
        typical_p=tensor([sampling.typical_p for sampling in samplings], precision),
        uniforms=torch.from_numpy(chances).to(device),
        places=torch.arange(count, dtype=torch.int32, device=device),
        row_slots=torch.arange(count, dtype=torch.int32, device=device),
        counted=tensor([needs_counts(sampling) for sampling in samplings], torch.int32),
        repetition_penalty=floats("repetition_penalty"),
        frequency_penalty=floats("frequency_penalty"),
        presence_penalty=floats("presence_penalty"),
        masked=tensor([place if row.request.masked else -1 for place, row in enumerate(rows)], torch.int32),
        bits=torch.from_numpy(bits.view("<i4").ravel()).to(device),
        bias_starts=torch.from_numpy(np.cumsum([0, *map(len, biases)]).astype(np.int32)).to(device),
        bias_tokens=tensor([token for row in biases for token, _ in row], torch.int32),
        biases=tensor([bias for row in biases for _, bias in row], torch.float32),
        top_n=torch.full((count,), _TOP, dtype=torch.int32, device=device),
    )
