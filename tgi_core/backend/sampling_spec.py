"""One row per field of `Sampling`: its range, when it acts, who implements it, and what a session declares for it.

The checks of a request, the ledger's refusals, the router's rules, the wire, the choice between the device's sampler and the host's, and
the conformance suite read this table. A new field is added to `Sampling` and `SamplingField` (types.py), as a row here, and where it is
computed; tests/backend/test_sampling_spec.py names every place that lacks it.
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
"""About the largest float32, in which logits are."""


class SamplingStage(Enum):
    """PENALTY: changes logits, of greedy rows too. FILTER: leaves tokens out of the distribution that a sampled row draws from.
    DRAW: whether and how a token is drawn; every request has these."""

    PENALTY = "penalty"
    FILTER = "filter"
    DRAW = "draw"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`; an end that is open does not belong to them."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number is one of them. Not a number is not."""
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        """As in "must be >= 0.0 and <= 1.0"."""
        return f"{'>' if self.low_open else '>='} {self.low} and {'<' if self.high_open else '<='} {self.high}"


ABOVE_0 = Range(0.0, math.inf, low_open=True, high_open=True)
SHARE = Range(0.0, 1.0, low_open=True)
"""Of a distribution: all of it is off."""
LOGITS = Range(-LARGEST_LOGIT, LARGEST_LOGIT, low_open=True, high_open=True)
"""What can be added to a logit."""

PENALTY, FILTER, DRAW = SamplingStage


@dataclass(frozen=True)
class SamplingSpec:
    """One field of `Sampling`, whose default there is neutral.

    `field` is what a session declares for it, None for a field of `text-core`. `range` is None where every value of its type will do;
    that of `logit_bias` is its biases'. `on_device`: samplers on the device implement it too (`PlainSampler`, `StepSampler`); the
    published formula and the engine's sampler on the host implement every row. `since` is the contract that it came with. `tried`
    are values that conformance clauses and tests set it to, and `sentence` says what it does.
    """

    name: str
    stage: SamplingStage
    range: Range | None
    sentence: str
    tried: tuple[Any, ...]
    field: SamplingField | None = None
    on_device: bool = False
    since: tuple[int, int] = (1, 0)

    @cached_property
    def neutral(self) -> Any:
        """The value that does nothing."""
        return getattr(Sampling(), self.name)

    def of(self, sampling: Sampling) -> Any:
        """Its value."""
        return getattr(sampling, self.name)

    def is_used(self, sampling: Sampling) -> bool:
        """Whether it changes what this row makes: a filter does nothing to a greedy one."""
        return self.of(sampling) != self.neutral and (self.stage is not FILTER or sampling.do_sample)

    @property
    def switches_on(self) -> bool:
        """Whether to ask for it is to ask for sampling: a temperature and filters mean nothing to a greedy row."""
        return self.stage is FILTER or self.name == "temperature"

    def numbers(self, sampling: Sampling) -> tuple[Any, ...]:
        """What must be in its range: its value, or each token's."""
        value = self.of(sampling)
        return tuple(bias for _, bias in value) if isinstance(value, tuple) else (value,)


SAMPLING: tuple[SamplingSpec, ...] = (
    SamplingSpec("do_sample", DRAW, None, "a draw instead of the argmax", (True,), on_device=True),
    SamplingSpec("temperature", DRAW, ABOVE_0, "logits are divided by it", (0.4, 0.7, 1.5, 3.0), on_device=True),
    SamplingSpec("top_k", FILTER, Range(0, math.inf), "so many of the likeliest tokens", (1, 2, 3, 6)),
    SamplingSpec("top_p", FILTER, SHARE, "the likeliest tokens up to this probability", (0.3, 0.7, 0.95)),
    SamplingSpec(
        "min_p",
        FILTER,
        Range(0.0, 1.0),
        "tokens at least this likely beside the likeliest",
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
    SamplingSpec("seed", DRAW, None, "a seed makes the same tokens again", (7, 2**40 + 9), SamplingField.SEED, on_device=True),
)
"""In the order in which filters act."""

DECLARED = tuple(spec for spec in SAMPLING if spec.field is not None and spec.stage is not DRAW)
"""Those that a session must declare before a request may use them. Every request has a seed, so none can be refused for it."""


class FieldGroup(NamedTuple):
    """Fields that are looked at together: `values` of a `Sampling`, and what those are when none does anything. The engine asks for
    every row of a step, so this is one look and no call of Python's."""

    values: Callable[[Sampling], object]
    neutral: object

    @classmethod
    def of(cls, specs: Iterable[SamplingSpec]) -> FieldGroup:
        """Some rows of the table."""
        values: Callable[[Sampling], object] = attrgetter(*(spec.name for spec in specs))
        return cls(values, values(Sampling()))


PENALTIES = FieldGroup.of(spec for spec in SAMPLING if spec.stage is PENALTY)
FILTERS = FieldGroup.of(spec for spec in SAMPLING if spec.stage is FILTER)
HOST_ONLY = FieldGroup.of(spec for spec in SAMPLING if not spec.on_device)
"""What no sampler on the device implements."""


def without(group: FieldGroup, sampling: Sampling) -> bool:
    """Whether no field of a group does anything."""
    return group.values(sampling) == group.neutral


def needed_fields(sampling: Sampling) -> set[SamplingField]:
    """What a session must have declared for a request."""
    return {spec.field for spec in DECLARED if spec.field is not None and spec.is_used(sampling)}


def newer_fields(built: tuple[int, int]) -> frozenset[SamplingField]:
    """Fields that a plugin built against an older contract cannot know, whatever its session declares."""
    return frozenset(spec.field for spec in SAMPLING if spec.field is not None and spec.since > built)
