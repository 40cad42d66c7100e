"""Types that request bodies are made of, as strict as serde: no coercion, unknown fields ignored, null only where a field is optional."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from tgi_router.json_text import single

_LEAST = 2.0**-126
"""The smallest float32 that is not denormal. Devices take smaller ones for 0, and their inverses for infinite."""


def to_single(value: float) -> float:
    """The nearest float32. Raises ValueError for a number that would become 0, denormal or infinite."""
    try:
        nearest = single(value)
    except OverflowError:
        nearest = inf
    if isinf(nearest) or (value and abs(nearest) < _LEAST):
        raise ValueError("number out of range, expected f32")
    return nearest


F32 = Annotated[float, AfterValidator(to_single)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]


def schema_keywords(**keywords: Any) -> Any:
    """Keywords of JSON Schema for the OpenAPI document only: `tgi_router.validation` holds requests to them, in TGI's order and words."""
    return Field(json_schema_extra=keywords)


Item = TypeVar("Item")


@dataclass(unsafe_hash=True)
class _FirstFault(FailFast):
    """Hashable, unlike its base, so that it may stand in a union."""


ListOf = Annotated[list[Item], _FirstFault()]
"""A list that is judged by its first fault: a megabyte of faults would otherwise be collected one by one."""


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
