"""Rows that a device samples from processed logits: with penalties, a logit bias, a mask, typical-p, or top tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.backend import Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling_spec import SAMPLING, FieldGroup, without
from tgi_core.engine.row_filters import NEUTRAL, RowFilters

IN_PROMPT = 1 << 30
"""The bit of a token's count in a row that says that it is in the prompt; the others count how often it was generated."""

MOST_TOP = 20
"""The most top tokens of a row that a device finds; more are left to the host."""


@dataclass(frozen=True, slots=True)
class ProcessedInputs:
    """Tensors of these rows on the device."""

    temperatures: Tensor
    """[rows], in the sampler's precision; 0 for the argmax."""
    filters: RowFilters
    typical_p: Tensor
    """[rows], in the sampler's precision, 1 for off."""
    uniforms: Tensor
    """float32 [rows]."""
    places: Tensor
    """int32 [rows], their indices in the logits."""
    row_slots: Tensor
    """int32 [rows]."""
    counted: Tensor
    """int32 [rows], 1 for rows whose penalties need counts of tokens."""
    repetition_penalty: Tensor
    """float32 [rows], 1 for off."""
    frequency_penalty: Tensor
    """float32 [rows], 0 for off."""
    presence_penalty: Tensor
    """float32 [rows], 0 for off."""
    masked: Tensor
    """int32 [rows], their masks in `bits`, −1 for none."""
    bits: Tensor
    """int32 [masks · words], a 1 bit allows a token; at least one word."""
    bias_starts: Tensor
    """int32 [rows + 1], where their biases begin."""
    bias_tokens: Tensor
    """int32 [biases]."""
    biases: Tensor
    """float32 [biases]."""
    top_n: Tensor
    """int32 [rows], 0 for off."""


PROCESSING: dict[str, float] = {
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "top_n": 0,
}
"""The numbers of a row, and what each is where it is off."""


def processing(row: RowState) -> dict[str, float]:
    """One row's numbers by name."""
    sampling = row.request.sampling
    return {
        "typical_p": sampling.typical_p,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "top_n": row.request.want.top_n,
    }


_ON_HOST = FieldGroup.of(
    spec for spec in SAMPLING if not spec.on_device and spec.name not in {*NEUTRAL, *PROCESSING, "logit_bias"}
)
"""Fields that no device processes, including any that are added later."""


def needs_counts(sampling: Sampling) -> bool:
    """Whether penalties depend on a row's tokens."""
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def can_process(row: RowState, precision: torch.dtype) -> bool:
    """Whether a device samples a row from processed logits; `precision` is that of its draws."""
    request = row.request
    if request.want.prompt_logprobs or request.want.top_n > MOST_TOP or not without(_ON_HOST, request.sampling):
        return False
    typical = request.sampling.do_sample and request.sampling.typical_p < 1
    return not typical or precision is torch.float64
