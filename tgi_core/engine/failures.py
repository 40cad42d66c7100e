"""Translates exceptions of torch and models in a step to the contract's errors."""

from __future__ import annotations

import torch

from tgi_core.backend import BackendBug, BackendError, DeviceLost, OutOfMemory

TORCH_ERRORS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Exceptions that torch and models raise in a step."""

ACCELERATOR_ERROR: type[BaseException] | tuple[()] = getattr(torch, "AcceleratorError", ())
"""Raised by torch, in every call from then on, if the device's runtime fails. Vendors' early builds of 2.8 lack it."""

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""Texts of allocation failures in torch's RuntimeErrors."""


def translated(error: Exception) -> BackendError:
    """The contract's error for a step that failed."""
    reason = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in reason for text in _NO_MEMORY):
        return OutOfMemory(f"the step ran out of memory: {reason}")
    if isinstance(error, ACCELERATOR_ERROR):
        return DeviceLost(f"the device failed: {reason}")
    return BackendBug(f"the step failed: {type(error).__name__}: {reason}")
