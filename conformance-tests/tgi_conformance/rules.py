"""What the contract asks of one request by itself: ranges, limits, and features that the session must have declared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tgi_core.backend import (
    BackendError,
    Capabilities,
    Capacity,
    CapacityExceeded,
    Feature,
    InvalidRequest,
    Request,
    Sampling,
    SamplingField,
    Unsupported,
)


def needs_of(request: Request) -> Iterator[str]:
    """Values of the features and sampling fields beyond `text-core` that a request uses."""
    how, want = request.sampling, request.want
    used = (
        (Feature.PREFIX_REUSE, request.cached > 0),
        (Feature.LOGPROBS, want.logprobs),
        (Feature.TOP_N, want.top_n > 0),
        (Feature.PROMPT_LOGPROBS, want.prompt_logprobs),
        (Feature.MASKS, request.masked),
        (Feature.LORA, request.adapter is not None),
        (Feature.MEDIA, len(request.media) > 0),
        (Feature.CHUNKED_PREFILL, request.cached + request.take < len(request.tokens)),
        (SamplingField.REPETITION_PENALTY, how.repetition_penalty != 1),
        (SamplingField.FREQUENCY_PENALTY, how.frequency_penalty != 0),
        (SamplingField.PRESENCE_PENALTY, how.presence_penalty != 0),
        (SamplingField.LOGIT_BIAS, len(how.logit_bias) > 0),
        (SamplingField.TYPICAL_P, how.do_sample and how.typical_p != 1),
    )
    yield from (name.value for name, is_used in used if is_used)


def broken_rules(request: Request, capabilities: Capabilities, capacity: Capacity) -> Iterable[tuple[type[BackendError], str]]:
    """Errors that this request calls for, with the reason."""
    declared = {item.value for item in (*capabilities.features, *capabilities.sampling)}
    for name in needs_of(request):
        if name not in declared:
            yield Unsupported, f"request {request.id} uses {name}, which is not declared"
    if request.adapter is not None and request.adapter not in capabilities.adapters:
        yield Unsupported, f"request {request.id} names an adapter that is not loaded"
    length = len(request.tokens)
    if length > capacity.max_row_tokens:
        yield CapacityExceeded, f"request {request.id} has {length} tokens, max_row_tokens is {capacity.max_row_tokens}"
    for broken, why in _ranges(request, capabilities, capacity):
        if broken:
            yield InvalidRequest, f"request {request.id}: {why}"
    for broken, why in _sampling_ranges(request.sampling):
        if broken:
            yield InvalidRequest, f"request {request.id}: {why}"


def _ranges(request: Request, capabilities: Capabilities, capacity: Capacity) -> Iterator[tuple[bool, str]]:
    length, vocab = len(request.tokens), capabilities.vocab_size
    yield length == 0, "no tokens"
    yield not 0 <= request.cached < max(1, length), f"cached {request.cached}"
    yield request.take < 1 or request.take > length - request.cached, f"take {request.take}"
    yield not 0 <= request.prompt_len <= length, f"prompt_len {request.prompt_len}"
    yield any(token < 0 or token >= vocab for token in request.tokens), f"a token outside 0…{vocab - 1}"
    yield any(token < 0 or token >= vocab for token, _ in request.sampling.logit_bias), f"a bias outside 0…{vocab - 1}"
    yield len(request.blocks) != len(capacity.groups), "not one tuple of blocks per cache group"
    yield request.want.top_n < 0, f"top_n {request.want.top_n}"


def _sampling_ranges(how: Sampling) -> Iterator[tuple[bool, str]]:
    yield not 0 < how.temperature < math.inf, f"temperature {how.temperature}"
    yield how.top_k < 0, f"top_k {how.top_k}"
    yield not 0 < how.top_p <= 1, f"top_p {how.top_p}"
    yield not 0 < how.typical_p <= 1, f"typical_p {how.typical_p}"
    yield not 0 < how.repetition_penalty < math.inf, f"repetition_penalty {how.repetition_penalty}"
    yield not math.isfinite(how.frequency_penalty), f"frequency_penalty {how.frequency_penalty}"
    yield not math.isfinite(how.presence_penalty), f"presence_penalty {how.presence_penalty}"
    yield not all(math.isfinite(bias) for _, bias in how.logit_bias), "a bias that is not finite"
