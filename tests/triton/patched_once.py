"""A plugin of pytest that saves the interpreter a third of its time: Triton replaces the functions of its language anew at each call of one
of a kernel's own functions, though they have been since the kernel began."""

from __future__ import annotations

from typing import Any

import triton
from triton.runtime import interpreter

_SEEN: set[str] = set()
"""Modules for which they have been replaced; those that Triton's own module `standard` sees stay so, all others a kernel replaces."""


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call from inside a kernel."""
    if function.fn.__module__ not in _SEEN:
        _SEEN.add(function.fn.__module__)
        interpreter._patch_lang(function.fn)
    return function.rewrite()(*args, **kwargs)


if triton.knobs.runtime.interpret:
    interpreter.InterpretedFunction.__call__ = _call
