"""The fields of `Sampling` with values to test, from the contract's table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tgi_core.backend import SAMPLING, Sampling, SamplingField, SamplingSpec, SamplingStage

DECLARED = tuple(
    spec for spec in SAMPLING if spec.field and spec.field.value == spec.name and spec.stage is not SamplingStage.DRAW
)
"""Fields that a session may leave undeclared, and must then refuse; without those that only accompany one of them."""

FILTERS = tuple(spec for spec in SAMPLING if spec.stage is SamplingStage.FILTER)


def using(spec: SamplingSpec, value: Any, **others: Any) -> Sampling:
    """Return sampling that uses one field, along with what it needs to have an effect; filters and draws set `do_sample`."""
    return Sampling(**{"do_sample": spec.stage is not SamplingStage.PENALTY, **dict(spec.beside), **others, spec.name: value})


def wrong(spec: SamplingSpec) -> tuple[Sampling, ...]:
    """Return sampling with values of one field that are out of its range."""
    if spec.range is None:
        return ()
    low = spec.range.low if spec.range.low_open else spec.range.low - 1
    high = spec.range.high if spec.range.high_open else spec.range.high + 1
    numbers = [end if abs(end) < _HUGE else math.copysign(math.inf, end) for end in (low, high)]
    values = [int(low)] if isinstance(spec.neutral, int) else [*numbers, math.nan]
    return tuple(using(spec, ((0, value),) if isinstance(spec.neutral, tuple) else value) for value in values)


def used(how: Sampling) -> set[str]:
    """Return the names of the fields that must be declared for a row."""
    return {spec.name for spec in DECLARED if spec.is_used(how)}


_HUGE = 1e30
"""Limits above this are treated as unbounded: only infinity is surely out of range."""


@contextmanager
def a_later_field() -> Iterator[SamplingField]:
    """Add a member to `SamplingField` within the context, as a later minor version of the contract will."""
    later = object.__new__(SamplingField)
    later._name_, later._value_ = "LATER", "a_field_of_a_later_minor"
    SamplingField._member_map_["LATER"] = later
    SamplingField._member_names_.append("LATER")
    try:
        yield later
    finally:
        SamplingField._member_names_.remove("LATER")
        del SamplingField._member_map_["LATER"]
