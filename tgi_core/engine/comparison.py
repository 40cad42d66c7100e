"""Shared by self-checks of models: errors, sizes of differences, and verdicts on which ranks agree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tgi_core.engine.attention.interface import NotRagged

MODEL_ERRORS = (
    NotRagged,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions of a model's code that is called in a way that it does not support."""

Agree = Callable[[int], int]
"""The minimum over the ranks' values."""


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to the expected norm; tokens with logits of minus infinity don't count."""
    finite = expected > torch.finfo(expected.dtype).min / 2
    found, expected = found.float()[finite], expected.float()[finite]
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))
