"""Which rows the device samples with filters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tgi_core.backend import Request, Sampling
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling_spec import SAMPLING, SamplingSpec
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
