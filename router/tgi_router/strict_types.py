"""Field types of request bodies, as strict as serde: no coercion, unknown fields ignored, null only where a field is optional."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from tgi_router.json_text import single

_LEAST = 2.0**-126
"""The smallest normal float32. Devices may flush smaller ones to 0, and their inverses overflow."""


def to_single(value: float) -> float:
    """Return the nearest float32. Raises ValueError for a number that would become 0, denormal or infinite."""
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
    """JSON Schema keywords for the OpenAPI document only: `tgi_router.validation` enforces them, in TGI's order and wording."""
    return Field(json_schema_extra=keywords)


Item = TypeVar("Item")


@dataclass(unsafe_hash=True)
class _FirstFault(FailFast):
    """A hashable FailFast, so that it can be used within a union."""


ListOf = Annotated[list[Item], _FirstFault()]
"""A list whose validation stops at the first error: collecting a megabyte of errors would be slow."""


class Body(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
