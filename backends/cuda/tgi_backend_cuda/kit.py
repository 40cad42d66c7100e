"""An NVIDIA device as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tgi_backend_cuda.attention.flash_attn2 import FlashAttention2
from tgi_backend_cuda.attention.flash_attn3 import FlashAttention3
from tgi_backend_cuda.attention.flashinfer import FlashInfer
from tgi_backend_cuda.nvml import NoNvml, driver_version
from tgi_backend_cuda.tiles import tiles_for
from tgi_core.backend import Unsupported
from tgi_core.engine.accelerator.failures import FailureTexts
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.accelerator.varlen import VarlenAttention
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.triton.tiles import TileTable


class CudaKit(AcceleratorKit):
    """One NVIDIA device."""

    name = "cuda"
    device_type = "cuda"
    collectives = "nccl"
    failures = FailureTexts(lost=("cuda error: unknown error", "fallen off the bus"), peers=("nccl error", "ncclremoteerror"))

    def __init__(self, index: int, memory_fraction: float, runtime: Runtime | None = None) -> None:
        super().__init__(index, memory_fraction, runtime)
        self.capability: tuple[int, int] = torch.cuda.get_device_capability(self.device)
        self._multiprocessors: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        if reason := no_code(self.capability, torch.cuda.get_arch_list()):
            raise Unsupported(f"{self.runtime.get_device_name(self.device)}: {reason}")

    def providers(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first. Those that cannot be captured, or need blocks of 256, which share fewer prefixes, come late."""
        return (
            FlashAttention3(self.device),
            *self.triton(self._multiprocessors),
            FlashInfer(self.device),
            FlashAttention2(self.device),
            VarlenAttention(self.device),
            TorchAttention(),
        )

    def tiles(self) -> TileTable:
        """The tiles of its compute capability."""
        return tiles_for(self.capability)

    def driver(self) -> str:
        """As NVML tells it."""
        try:
            return driver_version()
        except NoNvml:
            return ""

    def graph(self) -> NewGraph | str:
        """Decode steps are captured."""
        return torch.cuda.CUDAGraph


def no_code(capability: tuple[int, int], built: Sequence[str]) -> str:
    """Why this torch cannot run on a device of this compute capability; empty if it can. `built` is like ["sm_80", "sm_90a"].

    Code for a capability runs on later ones of the same major version; "compute_…" is compiled further by the driver.
    """
    major, minor = capability
    for name in built:
        kind, _, digits = name.partition("_")
        number = int("".join(filter(str.isdigit, digits)) or 0)
        runs = number // 10 == major and number % 10 <= minor if kind == "sm" else number <= 10 * major + minor
        if runs:
            return ""
    return (
        f"compute capability {major}.{minor}, for which torch {torch.__version__} has no code ({', '.join(built) or 'none at all'});"
        " install a build that lists it"
    )
