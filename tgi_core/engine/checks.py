"""Sampling parameters that no formula can honour, refused before anything changes."""

from __future__ import annotations

import math

from tgi_core.backend import InvalidRequest, Request


def check_sampling(request: Request) -> None:
    """Raises InvalidRequest."""
    sampling = request.sampling
    wrong = (
        (not 0 < sampling.temperature < math.inf, f"temperature {sampling.temperature}"),
        (sampling.top_k < 0, f"top_k {sampling.top_k}"),
        (not 0 < sampling.top_p <= 1, f"top_p {sampling.top_p}"),
        (not 0 < sampling.typical_p <= 1, f"typical_p {sampling.typical_p}"),
        (not 0 < sampling.repetition_penalty < math.inf, f"repetition_penalty {sampling.repetition_penalty}"),
        (not math.isfinite(sampling.frequency_penalty), f"frequency_penalty {sampling.frequency_penalty}"),
        (not math.isfinite(sampling.presence_penalty), f"presence_penalty {sampling.presence_penalty}"),
        (not all(math.isfinite(bias) for _, bias in sampling.logit_bias), "a logit bias that is not finite"),
        (request.want.top_n < 0, f"top_n {request.want.top_n}"),
        (not request.tokens, "no tokens"),
    )
    for broken, why in wrong:
        if broken:
            raise InvalidRequest(f"request {request.id}: {why}", request_ids=(request.id,))
