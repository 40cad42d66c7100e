"""The plugin hooks. Importing this module does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tgi_backend_cuda import __version__
from tgi_backend_cuda.discovery import probe
from tgi_core.backend import Manifest, OpenOptions, Probe, Progress, hookimpl
from tgi_core.engine.accelerator.open_model import open_accelerator, plan_accelerator
from tgi_core.engine.accelerator.torch_build import torch_build

if TYPE_CHECKING:
    from tgi_backend_cuda.kit import CudaKit

DEFAULTS = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Default environment: devices are numbered as in nvidia-smi, and torch's watchdog aborts a lost rank's collectives without ending this
process, which reports the loss itself."""

_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables for torch's allocator; the first is the name since torch 2.9."""


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """`DEFAULTS`, and expandable segments unless the operator configures the allocator: less memory is lost between tensors."""
    if any(name in environment for name in _ALLOCATORS):
        return DEFAULTS
    return DEFAULTS | {allocator_variable(torch_build().get("__version__", "")): "expandable_segments:True"}


def allocator_variable(torch_version: str) -> str:
    """The variable that this torch reads without a warning."""
    major, minor = (int(part) for part in f"{torch_version or 2}.0".split(".")[:2])
    return _ALLOCATORS[(major, minor) < (2, 9)]


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest("cuda", "tgi-core", __version__, api_built=(1, 10), api_requires=(1, 2), device_kind="cuda")


@hookimpl
def backend_probe() -> Probe:
    """Detect NVIDIA's devices, and check that the installed torch is built for them."""
    return probe()


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory, PeerLost; DeviceLost if there is no device."""
    return open_accelerator(options, progress, probe(), defaults(os.environ), lambda: _kit(options))


@hookimpl
def backend_plan(options: OpenOptions, free_bytes: int | None) -> object:
    """What `backend_open` would choose, and how much memory it would take. Raises InvalidModel, Unsupported; DeviceLost if there is no
    device."""
    return plan_accelerator(options, free_bytes, probe(), defaults(os.environ), lambda: _kit(options))


def _kit(options: OpenOptions) -> CudaKit:
    from tgi_backend_cuda.kit import CudaKit

    return CudaKit(options.group.local_rank, options.memory_fraction).with_cache(options.cache_dtype)
