"""Sampling parameters that no formula can honour, refused before anything changes."""

from __future__ import annotations

import math

from tgi_core.backend.errors import InvalidRequest
from tgi_core.backend.types import Request

_LARGEST = 3.4e38
"""About the largest float32, in which scores are."""


def check_sampling(request: Request) -> None:
    """Raises InvalidRequest."""
    sampling = request.sampling
    wrong = (
        (not 0 < sampling.temperature < math.inf, f"temperature {sampling.temperature}"),
        (sampling.top_k < 0, f"top_k {sampling.top_k}"),
        (not 0 < sampling.top_p <= 1, f"top_p {sampling.top_p}"),
        (not 0 < sampling.typical_p <= 1, f"typical_p {sampling.typical_p}"),
        (not 0 < sampling.repetition_penalty < _LARGEST, f"repetition_penalty {sampling.repetition_penalty}"),
        (not abs(sampling.frequency_penalty) < _LARGEST, f"frequency_penalty {sampling.frequency_penalty}"),
        (not abs(sampling.presence_penalty) < _LARGEST, f"presence_penalty {sampling.presence_penalty}"),
        (not all(abs(bias) < _LARGEST for _, bias in sampling.logit_bias), "a logit bias that no score can hold"),
        (request.want.top_n < 0, f"top_n {request.want.top_n}"),
        (not request.tokens, "no tokens"),
    )
    for broken, why in wrong:
        if broken:
            raise InvalidRequest(f"request {request.id}: {why}", request_ids=(request.id,))
