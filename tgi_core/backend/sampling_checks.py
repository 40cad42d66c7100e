"""Validation of sampling parameters, before any state changes."""

from __future__ import annotations

from collections.abc import Iterator

from tgi_core.backend.errors import InvalidRequest
from tgi_core.backend.sampling_spec import SAMPLING
from tgi_core.backend.types import Request


def check_sampling(request: Request) -> None:
    """Validate a request's sampling parameters and tokens. Raises InvalidRequest."""
    for why in _faults(request):
        raise InvalidRequest(f"request {request.id}: {why}", request_ids=(request.id,))


def _faults(request: Request) -> Iterator[str]:
    for spec in SAMPLING:
        if spec.range is not None:
            yield from (f"{spec.name} {value}" for value in spec.numbers(request.sampling) if not spec.range.holds(value))
    if request.want.top_n < 0:
        yield f"top_n {request.want.top_n}"
    if not request.tokens:
        yield "no tokens"
