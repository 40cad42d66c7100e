"""The contract's rules for a single request: ranges, limits, and declared features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tgi_conformance.fields import DECLARED
from tgi_core.backend import (
    SAMPLING,
    BackendError,
    Capabilities,
    Capacity,
    CapacityExceeded,
    Feature,
    Grant,
    InvalidRequest,
    Request,
    Row,
    Sampling,
    Unsupported,
)


def needs_of(request: Request) -> Iterator[str]:
    """Yield the features and sampling fields beyond `text-core` that a request uses, by value."""
    want = request.want
    features = (
        (Feature.PREFIX_REUSE, request.cached > 0),
        (Feature.LOGPROBS, want.logprobs),
        (Feature.TOP_N, want.top_n > 0),
        (Feature.PROMPT_LOGPROBS, want.prompt_logprobs),
        (Feature.MASKS, request.masked),
        (Feature.LORA, request.adapter is not None),
        (Feature.MEDIA, len(request.media) > 0),
        (Feature.CHUNKED_PREFILL, request.cached + request.take < len(request.tokens)),
    )
    yield from (name.value for name, is_used in features if is_used)
    yield from (spec.name for spec in DECLARED if spec.is_used(request.sampling))


def broken_rules(request: Request, capabilities: Capabilities, capacity: Capacity) -> Iterable[tuple[type[BackendError], str]]:
    """Yield the errors that this request must raise, with reasons."""
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
    for why in _out_of_range(request.sampling):
        yield InvalidRequest, f"request {request.id}: {why}"


def broken_draft_rules(
    grant: Grant, owed: int, capabilities: Capabilities, capacity: Capacity
) -> Iterable[tuple[type[BackendError], str]]:
    """Yield the errors that this grant's drafts must raise; the row owes `owed` tokens of its prompt."""
    id, count, vocab = grant.request_id, len(grant.drafts), capabilities.vocab_size
    if Feature.SPECULATION not in capabilities.features:
        yield Unsupported, f"row {id} runs drafts, and speculation is not declared"
    if count > capacity.draft:
        yield CapacityExceeded, f"row {id} runs {count} drafts, and draft is {capacity.draft}"
    if owed:
        yield InvalidRequest, f"row {id} runs drafts before its prompt is complete"
    if grant.take != 1 + count:
        yield InvalidRequest, f"row {id} takes {grant.take}, which is not 1 more than its {count} drafts"
    if any(token < 0 or token >= vocab for token in grant.drafts):
        yield InvalidRequest, f"row {id} has a draft outside 0…{vocab - 1}"


def broken_proposals(row: Row, capabilities: Capabilities, capacity: Capacity) -> Iterator[str]:
    """Yield why a row's proposals could not be granted as drafts of the next step."""
    count = len(row.proposed)
    if count > min(capabilities.proposals, capacity.draft):
        yield f"{count} tokens: the session declares {capabilities.proposals} proposals and promises {capacity.draft} drafts"
    for token in row.proposed:
        if not 0 <= token < capabilities.vocab_size:
            yield f"token {token} of a vocabulary of {capabilities.vocab_size}"
    if row.fault is not None or not row.tokens:
        yield f"tokens: {'it has failed' if row.fault is not None else 'it has made no token that they could follow'}"


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


def _out_of_range(how: Sampling) -> Iterator[str]:
    for spec in SAMPLING:
        if spec.range is not None and not all(map(spec.range.holds, spec.numbers(how))):
            yield f"{spec.name} {spec.of(how)}"
