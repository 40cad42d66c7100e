"""An AMD device as the engine sees it. torch calls it `cuda`; `torch.version.hip` tells the vendors apart."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from tgi_backend_rocm.aiter import AiterAttention
from tgi_backend_rocm.discovery import disagreement
from tgi_backend_rocm.graphs import UntunedGraph
from tgi_backend_rocm.tiles import tiles_for
from tgi_core.backend import Unsupported
from tgi_core.engine.accelerator.failures import FailureTexts
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.triton.tiles import TileTable


class RocmKit(AcceleratorKit):
    """One AMD device."""

    name = "rocm"
    device_type = "cuda"
    collectives = "nccl"  # which is RCCL in these builds
    failures = FailureTexts(
        lost=(
            "eccnotcorrectable",
            "hiperrorillegaladdress",
            "hiperrorlaunchfailure",
            "memory access fault",
            "hip error: unknown error",
        ),
        peers=("nccl error", "rccl error", "ncclremoteerror"),
    )

    def __init__(self, index: int, memory_fraction: float, runtime: Runtime | None = None) -> None:
        if torch.version.hip is None:
            raise Unsupported(f"torch {torch.__version__} is not a build for ROCm")
        if trouble := disagreement(os.environ):
            raise Unsupported(trouble)
        super().__init__(index, memory_fraction, runtime)
        properties = torch.cuda.get_device_properties(self.device)
        self.architecture = str(properties.gcnArchName).partition(":")[0]
        self._multiprocessors: int = properties.multi_processor_count

    def providers(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first."""
        return (
            AiterAttention(self.device, self.architecture),
            *self.triton(self._multiprocessors),
            TorchAttention(),
        )

    def tiles(self) -> TileTable:
        """The tiles of its architecture."""
        return tiles_for(self.architecture)

    def driver(self) -> str:
        """The version of a driver that AMD has packaged, else that of the kernel, which contains it."""
        try:
            return Path("/sys/module/amdgpu/version").read_text(encoding="utf-8").strip()
        except OSError:
            return platform.release()

    def graph(self) -> NewGraph | str:
        """Decode steps are captured on data-centre devices. On others, capturing whole steps crashes (vLLM's issues 34154 and 35485)."""
        if self.architecture.startswith("gfx1"):
            return f"capturing steps is known to crash on {self.architecture}"
        return UntunedGraph
