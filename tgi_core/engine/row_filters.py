"""The filters of rows that the device samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_core.backend import Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling_spec import SAMPLING, FieldGroup, without


@dataclass(frozen=True, slots=True)
class RowFilters:
    """Tensors [rows] on the device, neutral in rows without the filter."""

    top_k: Tensor
    """int32, 0 for off."""
    top_p: Tensor
    """In the dtype of temperatures, 1 for off."""
    min_p: Tensor
    """In the dtype of temperatures, 0 for off."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocab_size: int, precision: torch.dtype, device: torch.device) -> RowFilters:
        """The filters of rows with these samplings; `precision` is the dtype of temperatures."""
        values = [row_filters(sampling, vocab_size) for sampling in samplings]
        dtypes = {"top_k": torch.int32, "top_p": precision, "min_p": precision}
        return cls(**{name: torch.tensor([row[name] for row in values], dtype=dtypes[name], device=device) for name in NEUTRAL})


NEUTRAL: dict[str, float] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What each filter is where it is off."""


def row_filters(sampling: Sampling, vocab_size: int) -> dict[str, float]:
    """One row's filters by name; a top-k that keeps the whole vocabulary is off."""
    return {"top_k": sampling.top_k if sampling.top_k < vocab_size else 0, "top_p": sampling.top_p, "min_p": sampling.min_p}


_ON_HOST = FieldGroup.of(spec for spec in SAMPLING if not spec.on_device and spec.name not in NEUTRAL)
"""Fields that no device sampler implements, including any that are added later."""


def keeps_head(row: RowState) -> bool:
    """Whether a row is sampled with filters that keep the most likely tokens (top-k, top-p, min-p), and needs no other processing."""
    request = row.request
    sampling: Sampling = request.sampling
    if request.masked or request.want.top_n:
        return False
    return sampling.do_sample and without(_ON_HOST, sampling)
