"""A Trainium core as the static engine sees it, through TorchNeuron: torch's device `neuron`, and its compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tgi_backend_neuron.failures import FAILURES
from tgi_core.backend import Kernel, Progress, Unsupported
from tgi_core.engine.accelerator.discovery import installed
from tgi_core.engine.accelerator.failures import device_failure
from tgi_core.engine.attention.blocks import FlatAttention
from tgi_core.engine.attention.cache import BLOCK_SIZES
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.compiling.torch_compiler import TorchProgramCompiler
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.plain_kit import PlainKit
from tgi_core.engine.plain_queue import PlainQueue
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.runner import StaticRunner

DEVICE = "neuron"
"""torch's type of the device."""
_translated = partial(device_failure, texts=FAILURES)


class NeuronRules(BucketRules):
    """Few shapes, since each takes minutes to compile: 23 programs for 32 rows of 4,096 tokens."""

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """A quarter of the rows, and all."""
        return tuple(sorted({max(1, max_rows // 4), max_rows}))


class NativeKit(PlainKit):
    """One core."""

    dtypes: Mapping[str, torch.dtype] = {**PlainKit.dtypes, "float16": torch.float16}
    collectives = "neuron"
    program_bytes = 32 << 20
    rules: BucketRules = NeuronRules(takes=(128, 512, 1024), waste=0.45)

    def __init__(self, index: int, memory_fraction: float) -> None:
        import torch_neuronx  # noqa: F401  registers the device and its compiler, unless torch has loaded it already

        self._runtime: Any = torch.neuron  # type: ignore[attr-defined]
        count = self._runtime.device_count()
        if index >= count:
            raise Unsupported(f"rank {index} of this machine needs its own core, but only {count} can be used")
        self.device = torch.device(DEVICE, index)
        self._runtime.set_device(index)
        self._memory_fraction = memory_fraction

    def queue(self) -> PlainQueue:
        """A queue in lock step: waiting means waiting for everything enqueued."""
        return PlainQueue(lambda: self._runtime, _translated, in_flight=1)

    def compiler(self) -> Mapping[str, str]:
        """Versions, and the chip."""
        return {"torch": torch.__version__, "torch-neuronx": installed("torch-neuronx"), "neuronx-cc": installed("neuronx-cc")}

    def program_compiler(self, fields: Mapping[str, str], directory: Path | None) -> TorchProgramCompiler:
        """TorchNeuron's compiler. It keeps programs in `TORCH_NEURONX_NEFF_CACHE_DIR`, and its counter includes those found there."""
        return TorchProgramCompiler("neuron", fields, lambda: len(self._runtime.get_dynamo_metrics()), _translated)

    def attention(self) -> Sequence[AttentionProvider]:
        """The static engine's, in plain torch."""
        return (FlatAttention(BLOCK_SIZES[::-1]),)

    def choices(self) -> tuple[Kernel, ...]:
        """A note that this is experimental."""
        name = f"TorchNeuron {installed('torch-neuronx')}"
        return (Kernel("device", name, "experimental: plain torch, no NKI kernels; not run on a device by its authors"),)

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The static engine's runner."""
        return StaticRunner(self, weights, progress)

    def free_bytes(self) -> int:
        """The core's memory, less the operator's reserve and what torch has allocated."""
        self._runtime.synchronize()
        total = int(self._runtime.get_device_properties(self.device.index).total_memory)
        return max(0, int(self._memory_fraction * total) - int(self._runtime.memory_allocated(self.device.index)))
