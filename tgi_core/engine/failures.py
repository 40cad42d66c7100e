"""From what torch and models raise in a step to the contract's errors."""

from __future__ import annotations

import torch

from tgi_core.backend import BackendBug, BackendError, DeviceLost, OutOfMemory

FOREIGN = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What torch and models raise."""

ACCELERATOR_ERROR: type[BaseException] | tuple[()] = getattr(torch, "AcceleratorError", ())
"""What torch raises for a device's runtime, which answers nothing but this from then on. Vendors' early builds of 2.8 are without it."""

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators say so, in a RuntimeError."""


def translated(error: Exception) -> BackendError:
    """The contract's error for a step that failed."""
    reason = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in reason for text in _NO_MEMORY):
        return OutOfMemory(f"the step ran out of memory: {reason}")
    if isinstance(error, ACCELERATOR_ERROR):
        return DeviceLost(f"the device failed: {reason}")
    return BackendBug(f"the step failed: {type(error).__name__}: {reason}")
