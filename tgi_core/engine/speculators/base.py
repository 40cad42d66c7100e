"""The interface of a speculator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tgi_core.backend import Capacity, Kernel, OpenOptions, Row, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput
from tgi_core.engine.runner import StepLogits

PART = "proposals"
"""The part of a model that the choice of a speculator is about."""

Proposals = dict[int, tuple[int, ...]]
"""Guessed tokens by request."""


class Speculator(Protocol):
    """Guesses what follows the newest tokens of rows. Its guesses become drafts of later steps, which the model verifies."""

    name: str
    """Its layout."""
    most: int
    """Maximum number of tokens that it guesses for a row."""

    def reserve(self, plan: WarmupPlan, capacity: Capacity) -> Capacity:
        """Allocate what it keeps for rows within these limits; returns them with its memory. Raises OutOfMemory."""

    def propose(self, row_inputs: Sequence[RowInput], rows: Sequence[Row], logits: StepLogits, count: int) -> Proposals:
        """Guess up to `count` tokens after those that a step made: `rows` are the results of `row_inputs`, whose rows already have those
        tokens. Only rows that are told to `propose` get any."""

    def release(self) -> None:
        """Free what it keeps for rows."""


def continued(row_inputs: Sequence[RowInput], rows: Sequence[Row]) -> list[tuple[RowInput, Row]]:
    """The rows that made a token, continue, and are told to propose."""
    pairs = zip(row_inputs, rows, strict=True)
    return [(row_input, row) for row_input, row in pairs if row_input.propose and row.tokens and row.fault is None]


def no_proposals(options: OpenOptions, reason: str) -> tuple[Kernel, ...]:
    """What to report if a speculator is requested and there is none."""
    return (Kernel(PART, "none", reason),) if options.speculator else ()
