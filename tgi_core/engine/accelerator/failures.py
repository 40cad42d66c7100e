"""Translates what torch raises for a device to the contract's errors.

torch reports most device faults as RuntimeError (from 2.8 on `torch.AcceleratorError`) with the runtime's own text, so errors are told
apart by text. A faulted device fails every later call with the same error: only a new process helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tgi_core.backend import (
    BackendError,
    CompileFailed,
    DeviceBusy,
    DeviceLost,
    InvalidModel,
    OutOfMemory,
    PeerLost,
    Unsupported,
)
from tgi_core.engine.failures import ACCELERATOR_ERROR

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_LOST = (
    "device-side assert",
    "device lost",
    "hardware error",
    "illegal address",
    "illegal instruction",
    "illegal memory access",
    "invalid program counter",
    "launch failure",
    "launch timed out",
    "misaligned address",
    "uncorrectable ecc",
)
_NO_CODE = ("no kernel image is available", "invalid device function")
_PEERS = ("distbackenderror", "watchdog caught collective", "remote process exited")


@dataclass(frozen=True, slots=True)
class FailureTexts:
    """A vendor's own texts, in lower case, for a lost device, for lost ranks, and so on; `tool` shows who holds a device."""

    lost: Sequence[str] = ()
    peers: Sequence[str] = ()
    busy: Sequence[str] = ()
    memory: Sequence[str] = ()
    compiler: Sequence[str] = ()
    tool: str = ""


def device_failure(error: BaseException, texts: FailureTexts) -> BackendError | None:
    """The contract's error for what torch raised; None for errors that do not concern the device."""
    if isinstance(error, BackendError):
        return error
    reason = " ".join(str(error).split())
    lowered = f"{type(error).__name__} {reason}".lower()
    if _has(lowered, texts.busy):
        return DeviceBusy(f"the device is taken or cannot be opened; {texts.tool} shows which process holds it: {reason[:300]}")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _has(lowered, (*_NO_MEMORY, *texts.memory)):
        return OutOfMemory(f"the device is out of memory; lower --max-batch-size or --max-total-tokens: {reason[:300]}")
    if _has(lowered, (*_PEERS, *texts.peers)):
        return PeerLost(f"another rank is gone: {reason[:300]}")
    if _has(lowered, _NO_CODE):
        return Unsupported(f"a kernel has no code for this device; install builds that list its architecture: {reason[:300]}")
    if _has(lowered, texts.compiler):
        return CompileFailed(f"the device's compiler failed: {reason[:300]}")
    if isinstance(error, ACCELERATOR_ERROR) or _has(lowered, (*_LOST, *texts.lost)):
        return DeviceLost(f"the device failed: {reason[:300]}")
    return None


@contextmanager
def device_errors(texts: FailureTexts, loader: str = "") -> Iterator[None]:
    """Raises the contract's errors in place of a vendor's. While `loader` loads a model, its other errors become InvalidModel."""
    try:
        yield
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        found = device_failure(error, texts)
        if found is None and loader:
            found = InvalidModel(f"{loader} cannot load it: {' '.join(str(error).split())[:300]}")
        if found is None:
            raise
        raise found from error


def _has(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)
