"""Refuses what a compiler of static programs would refuse, but torch on the CPU allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_HOST_READS = ("_local_scalar_dense", "equal", "is_nonzero", "item")
_VALUE_SHAPES = (
    "masked_select",
    "nonzero",
    "nonzero_static",
    "repeat_interleave",
    "unique_dim",
    "_unique",
    "_unique2",
    "resize_",
)


class ProgramGuardError(RuntimeError):
    """A static device could not do this."""


def suspended() -> AbstractContextManager[Any]:
    """Suspend `BetweenPrograms` inside a program."""
    return _disable_current_modes()


class ProgramGuard(TorchDispatchMode):
    """Inside a program: refuses reads of values, shapes that depend on values, and writes to arguments that programs may not change. They
    may only write to the caches of the first argument, and to the second, the newest tokens.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        forward, newest, *_ = arguments
        writable = [newest, *_tensors(forward.caches)]
        inputs = _storages(_tensors(arguments)) - _storages(writable)
        self._fixed = inputs

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in _HOST_READS:
            raise ProgramGuardError(f"{name} reads a value on the host inside a program")
        if name in _VALUE_SHAPES or (name in ("index", "index_put_") and _masks(args)):
            raise ProgramGuardError(f"{name}: the shape of its result depends on values")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self._fixed:
                raise ProgramGuardError(f"{name} writes to an input that is neither a cache nor the newest tokens")
        return func(*args, **(kwargs or {}))


class BetweenPrograms(TorchDispatchMode):
    """Between programs: a step may only copy. Anything else would be a program that was not warmed."""

    ALLOWED = ("copy_", "_to_copy", "detach", "alias")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in self.ALLOWED:
            raise ProgramGuardError(f"{name} runs on the device outside of any program")
        return func(*args, **(kwargs or {}))


def _masks(args: Iterable[Any]) -> bool:
    return any(
        isinstance(each, Tensor) and each.dtype is torch.bool for part in args if isinstance(part, list | tuple) for each in part
    )


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested sequences, dataclasses and slots."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name))
    elif hasattr(type(value), "__slots__"):
        for name in type(value).__slots__:
            yield from _tensors(getattr(value, name))
