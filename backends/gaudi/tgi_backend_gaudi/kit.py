"""A Gaudi as the static engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch

from tgi_backend_gaudi.attention import BLOCK_SIZES, FusedAttention
from tgi_backend_gaudi.runtime import FAILURES, HabanaRuntime
from tgi_core.backend import Kernel, Progress, Unsupported
from tgi_core.engine.accelerator.discovery import installed
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.accelerator.runtime import Runtime
from tgi_core.engine.attention.blocks import FlatAttention
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.compiling.torch_compiler import TorchProgramCompiler
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.plain_queue import PlainQueue
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.runner import StaticRunner


class GaudiKit(AcceleratorKit):
    """The Gaudi of one rank."""

    name = "gaudi"
    collectives = "hccl"
    failures = FAILURES
    rules = BucketRules()
    program_bytes = 80 << 20
    """vLLM's users report 20–30 GiB for 300 programs (vllm-gaudi 1736)."""

    def __init__(self, habana: HabanaRuntime, memory_fraction: float) -> None:
        """Uses the device that the process has acquired."""
        self.habana, self.device_type = habana, habana.device_type
        super().__init__(0, memory_fraction, cast(Runtime, habana))  # it needs no streams

    def queue(self) -> PlainQueue:
        """One step ahead, unless `TGI_GAUDI_RUN_AHEAD=off`."""
        return PlainQueue(self.habana.mark, self.translated, 1 if self._switched("run_ahead") else 2)

    def compiler(self) -> Mapping[str, str]:
        """Versions, the chip, and whether layers are compiled alone."""
        return {
            "torch": torch.__version__,
            "habana-torch-plugin": installed("habana-torch-plugin") or "not installed",
            "chip": self.runtime.get_device_name(self.device),
            "regions": "steps" if self._switched("regions") else "layers",
        }

    def program_compiler(self, fields: Mapping[str, str], directory: Path | None) -> TorchProgramCompiler:
        """Intel's backend of torch.compile; the bridge keeps recipes in `PT_HPU_RECIPE_CACHE_CONFIG`."""
        return TorchProgramCompiler("hpu_backend", fields, self.habana.compiled, self.translated, not self._switched("regions"))

    def providers(self) -> Sequence[AttentionProvider]:
        """Intel's kernel for prompts, plain torch."""
        return (FusedAttention(BLOCK_SIZES), FlatAttention(BLOCK_SIZES))

    def graph(self) -> NewGraph | str:
        """None: programs replace them."""
        return "it runs programs"

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """bfloat16 unless float32 is requested; the chip converts what is stored in float16."""
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
        """The largest chunk in addition to all decode rows."""
        return 1056
