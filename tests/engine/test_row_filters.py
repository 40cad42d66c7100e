"""Which rows the device samples with filters, and which from processed logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tgi_core.backend import OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling_spec import SAMPLING, SamplingSpec
from tgi_core.engine.logits_processing import can_process
from tgi_core.engine.row_filters import keeps_head


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
def test_only_what_the_device_knows(spec: SamplingSpec) -> None:
    """A row with any other field of the table is left to the host's sampler."""
    known = {"do_sample", "temperature", "seed", "top_k", "top_p", "min_p"}
    for value in spec.tried:
        sampling = replace(Sampling(), **{"do_sample": True, **dict(spec.beside), spec.name: value})
        if spec.is_used(sampling) and sampling.do_sample:
            row = RowState(Request(1, (1, 2), 2, 0, ((0,),), 2, sampling), [1, 2], 0, ([0],))
            assert keeps_head(row) == (spec.name in known)


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
def test_only_what_is_processed(spec: SamplingSpec) -> None:
    """A row with a watermark, or a field that no kernel knows, is left to the host's sampler; so is typical-p without float64."""
    for value in spec.tried:
        sampling = replace(Sampling(), **{**dict(spec.beside), spec.name: value, "do_sample": True})
        row = RowState(Request(1, (1, 2), 2, 0, ((0,),), 2, sampling, masked=True), [1, 2], 0, ([0],))
        assert can_process(row, torch.float64) == (not spec.name.startswith("watermark"))
        assert can_process(row, torch.float32) == (not spec.name.startswith(("watermark", "typical_p")))


@pytest.mark.parametrize(
    ("want", "possible"), [({"top_n": 20}, True), ({"top_n": 21}, False), ({"prompt_logprobs": True}, False)]
)
def test_what_processed_rows_return(want: dict[str, int], possible: bool) -> None:
    """Rows that want more top tokens than the kernel finds, or logprobs of their prompts, are left to the host's sampler."""
    request = Request(1, (1, 2), 2, 0, ((0,),), 2, Sampling(presence_penalty=1.0), OutputOptions(**want))  # type: ignore[arg-type]
    assert can_process(RowState(request, [1, 2], 0, ([0],)), torch.float64) == possible
