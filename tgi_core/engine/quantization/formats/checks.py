"""Checks of configs and files; their errors name the field or the tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tgi_core.engine.weights.headers import TensorEntry

FLOATS = ("F32", "F16", "BF16")
"""Dtypes of scales."""


def check_field(field: str, value: object, supported: Sequence[object]) -> None:
    """Raise ValueError unless a config's value is one of these; True is not 1."""
    if not any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in supported):
        wanted = " or ".join("none" if each is None else str(each) for each in supported)
        raise ValueError(f"{field} is {str(value)[:60]}; supported: {wanted}")


def group_size_of(field: str, value: object) -> int:
    """A number of columns; 0 if one group has all of them (the config has −1 or nothing). Raises ValueError."""
    if value in (None, -1):
        return 0
    if type(value) is not int or value < 1:
        raise ValueError(f"{field} is {str(value)[:60]}; supported: a positive number or -1")
    return value


def check_parts(parts: Iterable[str], wanted: Sequence[str], optional: Iterable[str] = ()) -> None:
    """Raise ValueError unless a layer has the wanted tensors, and no others except optional ones."""
    found = set(parts)
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"lacks the tensor {missing[0]}")
    if unknown := found - set(wanted) - set(optional):
        raise ValueError(f"holds the tensor {min(unknown)[:60]}, which is not expected")


def check_tensor(parts: Mapping[str, TensorEntry], name: str, dtypes: Sequence[str], shape: Sequence[int | None]) -> TensorEntry:
    """The tensor of this name. Raises ValueError unless it has one of the dtypes and the shape; None stands for any size but 0."""
    entry = parts[name]
    fits = len(entry.shape) == len(shape) and all(
        size > 0 and want in (None, size) for size, want in zip(entry.shape, shape, strict=True)
    )
    if entry.dtype not in dtypes or not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} is {entry.dtype} {list(entry.shape)}, not {' or '.join(dtypes)} [{sizes}]")
    return entry
