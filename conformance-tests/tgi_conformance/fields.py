"""Fields of `Sampling` as the suite tries them, from the contract's table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tgi_core.backend import SAMPLING, Sampling, SamplingField, SamplingSpec, SamplingStage

DECLARED = tuple(spec for spec in SAMPLING if spec.field is not None and spec.stage is not SamplingStage.DRAW)
"""Those that a session may leave undeclared, and must refuse then."""

FILTERS = tuple(spec for spec in SAMPLING if spec.stage is SamplingStage.FILTER)


def using(spec: SamplingSpec, value: Any, **others: Any) -> Sampling:
    """Sampling by one field; a filter needs a row that is drawn."""
    return Sampling(**{"do_sample": spec.stage is not SamplingStage.PENALTY, **others, spec.name: value})


def wrong(spec: SamplingSpec) -> tuple[Sampling, ...]:
    """Sampling by numbers out of its range."""
    if spec.range is None:
        return ()
    low = spec.range.low if spec.range.low_open else spec.range.low - 1
    high = spec.range.high if spec.range.high_open else spec.range.high + 1
    numbers = [end if abs(end) < _HUGE else math.copysign(math.inf, end) for end in (low, high)]
    values = [int(low)] if isinstance(spec.neutral, int) else [*numbers, math.nan]
    return tuple(using(spec, ((0, value),) if isinstance(spec.neutral, tuple) else value) for value in values)


def used(how: Sampling) -> set[str]:
    """Names of the fields that must be declared for a row."""
    return {spec.name for spec in DECLARED if spec.is_used(how)}


_HUGE = 1e30
"""Ends beyond which only what is infinite is surely wrong."""


@contextmanager
def a_later_field() -> Iterator[SamplingField]:
    """While this runs, `SamplingField` has a member more, as it will in a later minor of the contract."""
    later = object.__new__(SamplingField)
    later._name_, later._value_ = "LATER", "a_field_of_a_later_minor"
    SamplingField._member_map_["LATER"] = later
    SamplingField._member_names_.append("LATER")
    try:
        yield later
    finally:
        SamplingField._member_names_.remove("LATER")
        del SamplingField._member_map_["LATER"]
