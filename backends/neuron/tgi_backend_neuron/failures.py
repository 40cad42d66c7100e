"""Translates what the Neuron runtime and compiler raise, as RuntimeErrors told apart by text, to the contract's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tgi_core.backend import BackendError, CompileFailed, DeviceBusy, DeviceLost, InvalidModel, OutOfMemory

_TEXTS: tuple[tuple[type[BackendError], tuple[str, ...], str], ...] = (
    (
        DeviceBusy,
        ("core(s) not available", "nerr_resource_nc", "could not be initialized", "cannot be initialized", "resource busy"),
        "the Neuron cores are taken or cannot be opened; neuron-ls shows which process holds them",
    ),
    (
        OutOfMemory,
        ("failed to allocate", "nrt_resource", "out of memory", "resource_exhausted"),
        "the device is out of memory; lower --max-batch-size or --max-total-tokens, or use more cores",
    ),
    (CompileFailed, ("neuronx-cc", "neuronxcc", "[ncc", "compilation failed"), "the compiler failed"),
    (DeviceLost, ("nrt_", "nerr_", "hardware error"), "the device failed"),
)


def neuron_failure(error: BaseException) -> BackendError | None:
    """The contract's error for what a vendor's library raised; None for errors that do not concern the device."""
    if isinstance(error, BackendError):
        return error
    reason = " ".join(str(error).split())
    for kind, texts, meaning in _TEXTS:
        if any(text in reason.lower() for text in texts):
            return kind(f"{meaning}: {reason[:300]}")
    return None


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
