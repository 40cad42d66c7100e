"""An Intel GPU as the engine sees it, through torch's own `torch.xpu`, without Intel's extension for PyTorch, which has reached its end
of life."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tgi_backend_xpu.ipex import IpexAttention
from tgi_backend_xpu.tiles import tiles_for
from tgi_backend_xpu.xpu_kernels import XpuKernelsAttention
from tgi_core.backend import Unsupported
from tgi_core.engine.accelerator.failures import FailureTexts
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.triton.tiles import TileTable

_ENGINES_PER_CORE = 8
"""Vector engines of one Xe core."""


class XpuKit(AcceleratorKit):
    """One Intel GPU."""

    name = "xpu"
    device_type = "xpu"
    collectives = "xccl"
    failures = FailureTexts(
        lost=("error_device_lost", "level_zero backend failed", "ur backend failed"), peers=("ccl error", "oneccl")
    )

    def __init__(self, index: int, memory_fraction: float, runtime: Runtime | None = None) -> None:
        if torch.version.xpu is None:
            raise Unsupported(f"torch {torch.__version__} is not a build for Intel GPUs")
        super().__init__(index, memory_fraction, runtime)
        properties = torch.xpu.get_device_properties(self.device)
        self._cores = max(1, properties.gpu_eu_count // _ENGINES_PER_CORE)
        if not properties.has_fp64:
            self.precision = torch.float32

    def providers(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first."""
        return (XpuKernelsAttention(self.device), IpexAttention(self.device), *self.triton(self._cores), TorchAttention())

    def tiles(self) -> TileTable:
        """The tiles of its kind."""
        return tiles_for(self.runtime.get_device_name(self.device))

    def driver(self) -> str:
        """As torch tells it."""
        return str(torch.xpu.get_device_properties(self.device).driver_version)

    def graph(self) -> NewGraph | str:
        """None yet."""
        return "graphs of this device are experimental in torch, and attention in them needs oneAPI 2026"
