"""Table of the fields of `Sampling`: valid range, stage, implementations, and the feature that a session declares.

Used by request validation, the tracker, the router's rules, the wire, the choice between device and host sampler, and the
conformance suite. To add a field, add it to `Sampling` and `SamplingField` (types.py), to this table, and to the code that computes
it; tests/backend/test_sampling_spec.py lists every place that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from tgi_core.backend.types import Sampling, SamplingField

LARGEST_LOGIT = 3.4e38
"""Approximately the largest float32, the type of logits."""


class SamplingStage(Enum):
    """PENALTY: changes logits, also of greedy rows. FILTER: removes tokens from the distribution of a sampled row. DRAW: whether
    and how a token is drawn; set for every request."""

    PENALTY = "penalty"
    FILTER = "filter"
    DRAW = "draw"


@dataclass(frozen=True, slots=True)
class Range:
    """Interval from `low` to `high`; an open end is excluded."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: float) -> bool:
        """Whether the interval contains `value`. False for NaN."""
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        """For messages, for example ">= 0.0 and <= 1.0"."""
        return f"{'>' if self.low_open else '>='} {self.low} and {'<' if self.high_open else '<='} {self.high}"


ABOVE_0 = Range(0.0, math.inf, low_open=True, high_open=True)
SHARE = Range(0.0, 1.0, low_open=True)
"""Share of a distribution; 1 turns the filter off."""
LOGITS = Range(-LARGEST_LOGIT, LARGEST_LOGIT, low_open=True, high_open=True)
"""Values that can be added to a logit."""

PENALTY, FILTER, DRAW = SamplingStage


@dataclass(frozen=True)
class SamplingSpec:
    """One field of `Sampling`; its default there is neutral.

    `field` is what a session declares to support it; None for fields of `text-core`, which every session supports. `range` is None
    if every value of the type is valid; for `logit_bias` it is the range of each bias. `on_device` marks fields that the device
    samplers (`PlainSampler`, `StepSampler`) implement as well; the published formula and the engine's host sampler implement every
    field. `since` is the contract version that added the field. `tried` are the values used by conformance clauses and tests,
    `sentence` describes it. `beside` are values of other fields without which it has no effect; such fields share one `field`.
    """

    name: str
    stage: SamplingStage
    range: Range | None
    sentence: str
    tried: tuple[Any, ...]
    field: SamplingField | None = None
    on_device: bool = False
    since: tuple[int, int] = (1, 0)
    beside: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def neutral(self) -> Any:
        """The value that has no effect."""
        return getattr(Sampling(), self.name)

    def of(self, sampling: Sampling) -> Any:
        """The field's value in `sampling`."""
        return getattr(sampling, self.name)

    def is_used(self, sampling: Sampling) -> bool:
        """Whether the field affects a row's tokens. Filters do not affect greedy rows."""
        return self.of(sampling) != self.neutral and (self.stage is not FILTER or sampling.do_sample)

    @property
    def switches_on(self) -> bool:
        """Whether setting the field implies `do_sample`: temperature and filters do not affect greedy rows."""
        return self.stage is FILTER or self.name == "temperature"

    def numbers(self, sampling: Sampling) -> tuple[Any, ...]:
        """Values to check against `range`: the field's value, or each bias of `logit_bias`."""
        value = self.of(sampling)
        return tuple(bias for _, bias in value) if isinstance(value, tuple) else (value,)


SAMPLING: tuple[SamplingSpec, ...] = (
    SamplingSpec("do_sample", DRAW, None, "draws a token instead of taking the argmax", (True,), on_device=True),
    SamplingSpec("temperature", DRAW, ABOVE_0, "divides the logits", (0.4, 0.7, 1.5, 3.0), on_device=True),
    SamplingSpec("top_k", FILTER, Range(0, math.inf), "keeps this many of the likeliest tokens", (1, 2, 3, 6)),
    SamplingSpec("top_p", FILTER, SHARE, "keeps the likeliest tokens up to this total probability", (0.3, 0.7, 0.95)),
    SamplingSpec(
        "min_p",
        FILTER,
        Range(0.0, 1.0),
        "keeps tokens at least this likely relative to the likeliest",
        (0.05, 0.2, 0.6),
        SamplingField.MIN_P,
        since=(1, 2),
    ),
    SamplingSpec("typical_p", FILTER, SHARE, "locally typical sampling", (0.3, 0.6, 0.9), SamplingField.TYPICAL_P),
    SamplingSpec(
        "repetition_penalty",
        PENALTY,
        Range(0.0, LARGEST_LOGIT, low_open=True, high_open=True),
        "a penalty on every token of the row",
        (0.7, 1.3, 2.0),
        SamplingField.REPETITION_PENALTY,
    ),
    SamplingSpec(
        "frequency_penalty",
        PENALTY,
        LOGITS,
        "a penalty per occurrence among generated tokens",
        (-3.0, -0.5, 0.8, 2.0),
        SamplingField.FREQUENCY_PENALTY,
    ),
    SamplingSpec(
        "presence_penalty",
        PENALTY,
        LOGITS,
        "a penalty once per generated token",
        (-3.0, -0.5, 0.8, 2.0),
        SamplingField.PRESENCE_PENALTY,
    ),
    SamplingSpec(
        "logit_bias", PENALTY, LOGITS, "a bias per token", (((3, 1.5), (4, -9.0)), ((1, 6.0),)), SamplingField.LOGIT_BIAS
    ),
    SamplingSpec(
        "watermark",
        PENALTY,
        LOGITS,
        "a bias on the greenlist that the previous token selects",
        (2.0, -1.5, 6.0),
        SamplingField.WATERMARK,
        since=(1, 4),
        beside=(("watermark_gamma", 0.5),),
    ),
    SamplingSpec(
        "watermark_gamma",
        PENALTY,
        Range(0.0, 1.0),
        "the greenlist's share of the vocabulary",
        (0.25, 0.5),
        SamplingField.WATERMARK,
        since=(1, 4),
        beside=(("watermark", 4.0),),
    ),
    SamplingSpec("seed", DRAW, None, "a seed makes the same tokens again", (7, 2**40 + 9), SamplingField.SEED, on_device=True),
)
"""In the order in which filters are applied."""

DECLARED = tuple(spec for spec in SAMPLING if spec.field is not None and spec.stage is not DRAW)
"""Fields that a session must declare before requests may use them. Excludes seed: every request has one."""


class FieldGroup(NamedTuple):
    """Fields that are tested together: a getter of their values, and their neutral values. The engine tests every row of every
    step, so `values` is a C-level attrgetter."""

    values: Callable[[Sampling], object]
    neutral: object

    @classmethod
    def of(cls, specs: Iterable[SamplingSpec]) -> FieldGroup:
        """Build a group from rows of the table."""
        values: Callable[[Sampling], object] = attrgetter(*(spec.name for spec in specs))
        return cls(values, values(Sampling()))


PENALTIES = FieldGroup.of(spec for spec in SAMPLING if spec.stage is PENALTY)
FILTERS = FieldGroup.of(spec for spec in SAMPLING if spec.stage is FILTER)
HOST_ONLY = FieldGroup.of(spec for spec in SAMPLING if not spec.on_device)
"""Fields that no device sampler implements."""


def without(group: FieldGroup, sampling: Sampling) -> bool:
    """Whether all fields of a group are neutral."""
    return group.values(sampling) == group.neutral


def needed_fields(sampling: Sampling) -> set[SamplingField]:
    """Fields that a session must declare to run a request."""
    return {spec.field for spec in DECLARED if spec.field is not None and spec.is_used(sampling)}


def newer_fields(built: tuple[int, int]) -> frozenset[SamplingField]:
    """Fields that a plugin built against contract version `built` cannot know, even if its session declares them."""
    return frozenset(spec.field for spec in SAMPLING if spec.field is not None and spec.since > built)
