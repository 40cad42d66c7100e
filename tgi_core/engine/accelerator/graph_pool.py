"""The memory that captured graphs share, and cleaning up in torch after a failed capture.

Until 2.12 torch's allocator stays in the capture when ending it fails: `CUDAGraph::capture_end` raises before it calls
`endAllocateToPool`. From then on `empty_cache` does nothing and no allocation is retried, in the whole process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tgi_core.engine.accelerator.runtime import Runtime

_log = logging.getLogger("tgi_core.engine")

TORCH: str = torch.__version__
_MENDED = "2.12"
"""The first torch that ends the allocator's part of a capture itself."""


def abandon_pool(device: torch.device, pool: Any) -> None:
    """End allocation from the pool of a capture that failed, and release the pool, if torch has not done so."""
    if torch.torch_version.TorchVersion(TORCH) >= _MENDED:
        return
    for verb in ("endAllocateToPool", "releasePool"):
        try:
            getattr(torch._C, f"_{device.type}_{verb}")(device.index, pool)
        except (AttributeError, RuntimeError) as error:  # a build without the function, or one that has done it already
            _log.debug("%s after a failed capture: %s", verb, error)


@contextmanager
def syncs_refused(runtime: Runtime) -> Iterator[None]:
    """Inside, an operator that waits for the device raises RuntimeError with its reason, if the device's runtime can detect that."""
    switch = getattr(runtime, "set_sync_debug_mode", None)
    if switch is None:
        yield
        return
    switch("error")
    try:
        yield
    finally:
        switch("default")
