"""The names under which transformers' models take and return their caches."""

from __future__ import annotations

import inspect

from transformers import PreTrainedModel

CACHE_NAMES = ("cache_params", "cache", "past_key_values", "state")
"""All such names. Since transformers 5.24, nearly every model uses `cache`."""


def cache_name(model: PreTrainedModel) -> str:
    """The argument that takes a cache object, which is also the field of the result; empty if there is none."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES[:-1] if name in takes), "")
