"""The plugin hooks. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgi_backend_rocm import __version__
from tgi_backend_rocm.discovery import probe
from tgi_core.backend import Manifest, OpenOptions, Probe, Progress, hookimpl
from tgi_core.engine.accelerator.open_model import open_accelerator, plan_accelerator

if TYPE_CHECKING:
    from tgi_backend_rocm.kit import RocmKit

DEFAULTS = {
    "PYTORCH_TUNABLEOP_ENABLED": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Default environment: tuning would break the capture of a graph, and between requests it would delay them; torch's watchdog of RCCL
aborts a lost rank's collectives without ending this process, which reports the loss itself."""


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest("rocm", "tgi-core", __version__, api_built=(1, 10), api_requires=(1, 2), device_kind="rocm")


@hookimpl
def backend_probe() -> Probe:
    """Detect AMD's devices, and check that the installed torch is built for them."""
    return probe()


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory, PeerLost; DeviceLost if there is no device."""
    return open_accelerator(options, progress, probe(), DEFAULTS, lambda: _kit(options))


@hookimpl
def backend_plan(options: OpenOptions, free_bytes: int | None) -> object:
    """What `backend_open` would choose, and how much memory it would take. Raises InvalidModel, Unsupported; DeviceLost if there is no
    device."""
    return plan_accelerator(options, free_bytes, probe(), DEFAULTS, lambda: _kit(options))


def _kit(options: OpenOptions) -> RocmKit:
    from tgi_backend_rocm.kit import RocmKit

    return RocmKit(options.group.local_rank, options.memory_fraction).with_cache(options.cache_dtype)
