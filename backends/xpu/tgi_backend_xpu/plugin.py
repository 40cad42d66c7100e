"""The plugin hooks. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgi_backend_xpu import __version__
from tgi_backend_xpu.discovery import probe
from tgi_core.backend import Manifest, OpenOptions, Probe, Progress, hookimpl
from tgi_core.engine.accelerator.open_model import open_accelerator, plan_accelerator

if TYPE_CHECKING:
    from tgi_backend_xpu.kit import XpuKit

DEFAULTS = {
    "CCL_ZE_IPC_EXCHANGE": "sockets",
    "CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK": "0",
    "CCL_ZE_CACHE_OPEN_IPC_HANDLES": "0",
}
"""Default environment, against stale and unexchangeable memory handles in oneCCL (vLLM's issues 41663 and 48953)."""


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest("xpu", "tgi-core", __version__, api_built=(1, 10), api_requires=(1, 2), device_kind="xpu")


@hookimpl
def backend_probe() -> Probe:
    """Detect Intel's devices, and check that the installed torch is built for them."""
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


def _kit(options: OpenOptions) -> XpuKit:
    from tgi_backend_xpu.kit import XpuKit

    return XpuKit(options.group.local_rank, options.memory_fraction).with_cache(options.cache_dtype)
