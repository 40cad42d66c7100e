"""Translates what the Neuron runtime and compiler raise, as RuntimeErrors told apart by text, to the contract's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tgi_core.backend import BackendError, CompileFailed, DeviceBusy, DeviceLost, InvalidModel, OutOfMemory

_TEXTS: tuple[tuple[type[BackendError], str, str], ...] = (
    (
        DeviceBusy,
        r"core\(s\) not available|nerr_resource_nc|(could not|cannot) be initialized|resource busy",
        "the Neuron cores are taken or cannot be opened; neuron-ls shows which process holds them",
    ),
    (
        OutOfMemory,
        "failed to allocate|nrt_resource|out of memory|resource_exhausted",
        "the device is out of memory; lower --max-batch-size or --max-total-tokens, or use more cores",
    ),
    (CompileFailed, r"neuronx-?cc|\[ncc|compilation failed", "the compiler failed"),
    (DeviceLost, "nrt_|nerr_|hardware error", "the device failed"),
)
"""The contract's errors, what the vendor's texts match, and what that means."""


def neuron_failure(error: BaseException) -> BackendError | None:
    """The contract's error for what a vendor's library raised; None for errors that do not concern the device."""
    if isinstance(error, BackendError):
        return error
    reason = " ".join(str(error).split())
    found = (kind(f"{meaning}: {reason[:300]}") for kind, texts, meaning in _TEXTS if re.search(texts, reason.lower()))
    return next(found, None)


@contextmanager
def neuron_errors(loading: bool = False) -> Iterator[None]:
    """Raises the contract's errors in place of the vendor's; while a model is `loading`, what it cannot take is InvalidModel."""
    try:
        yield
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        found = neuron_failure(error)
        if found is None and loading:
            found = InvalidModel(f"optimum-neuron cannot load it: {' '.join(str(error).split())[:300]}")
        if found is None:
            raise
        raise found from error
