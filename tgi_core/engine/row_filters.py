"""The filters of rows that the device samples."""

from __future__ import annotations

from dataclasses import dataclass, fields

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


_HEADS = tuple(field.name for field in fields(RowFilters))
_ON_HOST = FieldGroup.of(spec for spec in SAMPLING if not spec.on_device and spec.name not in _HEADS)
"""Every field of the table that no device sampler implements, including those added later."""


def keeps_head(row: RowState) -> bool:
    """Whether a row is sampled with filters that keep the most likely tokens (top-k, top-p, min-p), and needs no other processing."""
    request = row.request
    sampling: Sampling = request.sampling
    if request.masked or request.want.top_n:
        return False
    return sampling.do_sample and without(_ON_HOST, sampling)
