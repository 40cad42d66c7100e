"""JSON encoding of verbs between ranks: dataclasses become lists of their fields. Without pickle, a message can carry only data."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from tgi_core.backend import BackendBug, Grant, Handle, Request, Step, WarmupPlan

VERBS: dict[str, tuple[Any, ...]] = {
    "warmup": (WarmupPlan,),
    "prefill": (tuple[Request, ...], Handle, tuple[Grant, ...]),
    "decode": (tuple[Handle, ...], tuple[Grant, ...]),
    "rows": (Step,),
    "filter": (Handle, tuple[int, ...]),
    "clear": (Handle | None,),
}
"""Argument types of each verb that the ranks execute together."""


def encode(value: Any) -> bytes:
    """Encode a value as JSON."""
    return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """Return the untyped form of a value, as the peer decodes it. Equal values have equal forms."""
    return json.loads(encode(value))


def decode_arguments(verb: str, arguments: Any) -> tuple[Any, ...]:
    """Decode the arguments of a verb. Raises BackendBug for an unknown verb or wrong arguments."""
    if verb not in VERBS:
        raise BackendBug(f"rank 0 sent {str(verb)[:20]!r}, which is no verb")
    try:
        return tuple(_decoder(kind)(value) for kind, value in zip(VERBS[verb], arguments, strict=True))
    except (TypeError, ValueError) as error:
        raise BackendBug(f"rank 0 sent {verb[:20]!r} with arguments that it does not take: {error}") from error


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} does not go between ranks")


Decode = Callable[[Any], Any]


@cache
def _decoder(kind: Any) -> Decode:
    """Convert decoded JSON to a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = _decoder(next(item for item in arguments if item is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if origin in (tuple, frozenset):
        return _of_many(origin, arguments)
    if kind is bytes:
        return bytes.fromhex
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        parts = [_decoder(hints[field.name]) for field in fields(kind)]
        return lambda value: kind(*(part(item) for part, item in zip(parts, value, strict=True)))
    return lambda value: value


def _of_many(origin: Any, arguments: tuple[Any, ...]) -> Decode:
    if origin is frozenset or arguments[1:] == (...,):
        inner = _decoder(arguments[0])
        if arguments[0] in (int, float, str):
            return lambda value: origin(value)
        return lambda value: origin(inner(item) for item in value)
    inners = [_decoder(item) for item in arguments]
    return lambda value: tuple(part(item) for part, item in zip(inners, value, strict=True))
