"""A Gaudi as the static engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch

from tgi_backend_gaudi.attention import BLOCK_SIZES, FusedAttention, HabanaAttention
from tgi_backend_gaudi.runtime import HabanaRuntime
from tgi_core.backend import Group, Kernel, Progress, Unsupported
from tgi_core.engine.accelerator.failures import FailureTexts
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.plain_queue import PlainQueue
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.runner import StaticRunner
from tgi_core.engine.static.torch_compiler import TorchProgramCompiler


class GaudiKit(AcceleratorKit):
    """The Gaudi of one rank."""

    name = "gaudi"
    device_type = "hpu"
    collectives = "hccl"
    failures = FailureTexts(
        busy=("device acquire failed", "device not found", "no device found", "device or resource busy"),
        memory=("syn_out_of_resources", "synoutofresources", "failed to allocate", "allocation failed", "no free memory"),
        tool="hl-smi",
        compiler=("graph compile failed", "compilation failed", "synfailedcompile", "failed to compile"),
        peers=("hccl", "remote rank"),
        lost=("synstatus", "syndevicereset", "device reset", "device lost", "hardware error"),
    )
    rules = BucketRules()
    program_bytes = 80 << 20
    """vLLM's users report 20–30 GiB for 300 programs (vllm-gaudi 1736)."""

    def __init__(self, group: Group, memory_fraction: float) -> None:
        """Acquire the rank's device. Raises Unsupported, DeviceBusy."""
        try:
            import habana_frameworks.torch as habana
        except (AssertionError, ImportError, OSError, RuntimeError) as error:
            raise Unsupported(f"habana_frameworks cannot be imported: {' '.join(str(error).split())[:300]}") from error
        if habana.utils.internal.is_lazy():
            raise Unsupported("habana_frameworks was loaded in lazy mode before this backend: set PT_HPU_LAZY_MODE=0")
        hpu: Any = torch.hpu  # type: ignore[attr-defined]
        if group.local_rank >= (count := hpu.device_count()):
            raise Unsupported(
                f"--num-shard {group.world}: rank {group.local_rank} needs a device of its own, and {count} can be used"
            )
        if group.world > 1:
            from habana_frameworks.torch.distributed import hccl

            hccl.initialize_distributed_hpu(world_size=group.world, rank=group.rank, local_rank=group.local_rank)
        try:
            self.habana = HabanaRuntime(hpu)
            super().__init__(0, memory_fraction, cast(Runtime, self.habana))  # it needs no streams
        except RuntimeError as error:
            raise self.translated(error) or error from error

    def queue(self) -> PlainQueue:
        """One step ahead, unless `TGI_GAUDI_RUN_AHEAD=off`."""
        return PlainQueue(self.habana.mark, self.translated, 1 if self._switched("run_ahead") else 2)

    def compiler(self) -> Mapping[str, str]:
        """Versions, the chip, and whether layers are compiled alone."""
        return {
            "torch": torch.__version__,
            "habana-torch-plugin": _version("habana-torch-plugin"),
            "chip": self.runtime.get_device_name(self.device),
            "regions": "steps" if self._switched("regions") else "layers",
        }

    def program_compiler(self, fields: Mapping[str, str], directory: Path | None) -> TorchProgramCompiler:
        """Intel's backend of torch.compile; the bridge keeps recipes in `PT_HPU_RECIPE_CACHE_CONFIG`."""
        return TorchProgramCompiler("hpu_backend", fields, self.habana.compiled, self.translated, not self._switched("regions"))

    def providers(self) -> Sequence[AttentionProvider]:
        """Intel's kernel for prompts, plain torch."""
        return (FusedAttention(BLOCK_SIZES), HabanaAttention(BLOCK_SIZES))

    def graph(self) -> NewGraph | str:
        """None: programs take their place."""
        return "it runs programs"

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """bfloat16 unless float32 is asked for; the chip converts what is stored in float16."""
        if asked in ("float16", "half"):
            raise Unsupported("dtype float16: a Gaudi computes it badly or not at all; use bfloat16")
        return super().choose_dtype("bfloat16" if asked == "auto" else asked, stored)

    def choices(self) -> tuple[Kernel, ...]:
        """The device, what is switched off, and whether the package was verified on hardware."""
        switched = filter(None, map(self._switched, ("regions", "run_ahead")))
        name = self.runtime.get_device_name(self.device)
        return (Kernel("device", name), *(Kernel("switch", reason) for reason in switched), self._verified())

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The static engine's runner."""
        return StaticRunner(self, weights, progress)

    def default_rows(self) -> int:
        """Few, since each number of rows is compiled."""
        return 32

    def default_step_tokens(self) -> int:
        """The largest chunk beside all decode rows."""
        return 1056


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
