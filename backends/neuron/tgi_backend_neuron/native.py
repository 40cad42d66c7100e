"""A Trainium core as the static engine sees it, through TorchNeuron: torch's device `neuron`, and its compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgi_backend_neuron.failures import neuron_failure
from tgi_backend_neuron.finding import installed
from tgi_core.backend import BackendError, CompileFailed, Kernel, Progress, Unsupported
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.attention.cache import BLOCK_SIZES
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.device_queue import GraphMaker, StepSampler, Usage, Work
from tgi_core.engine.plain_kit import PlainKit
from tgi_core.engine.static.attention import FlatAttention
from tgi_core.engine.static.grid import GridRules
from tgi_core.engine.static.runner import StaticRunner

DEVICE = "neuron"
"""torch's type of the device."""
Compiled = Callable[..., Any]


class NeuronRules(GridRules):
    """Few shapes, since each takes minutes to compile: 23 programs for 32 rows of 4,096 tokens."""

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """A quarter of the rows, and all."""
        return tuple(sorted({max(1, max_rows // 4), max_rows}))


class NeuronQueue:
    """Work runs when it is given, asynchronously on the device; waiting is for all of it, so steps run in lock step."""

    in_flight = 1

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._sampler = TorchSampler(torch.float32)

    def run(self, work: Work) -> None:
        """Enqueue what the work enqueues."""
        work()

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """Plain memory."""
        return torch.zeros(count, dtype=dtype)

    def record(self) -> NeuronQueue:
        """Itself: waiting is for everything."""
        return self

    def wait(self) -> None:
        """Until the device is idle. Raises what it failed with."""
        try:
            self._runtime.synchronize()
        except RuntimeError as error:
            raise neuron_failure(error) or error from error

    def graphs(self) -> GraphMaker | str:
        """None: programs take their place."""
        return "it runs programs"

    def sampler(self) -> StepSampler:
        """torch's; it takes the argmax only."""
        return self._sampler

    def measured(self, work: Work) -> Usage:
        """Run the work; what it takes is estimated, not measured."""
        self.run(work)
        self.wait()
        return Usage(0, 0)

    def translated(self, error: Exception) -> BackendError | None:
        """The contract's error for one of the device's own."""
        return neuron_failure(error)


class NeuronMaker:
    """TorchNeuron's compiler; it keeps programs in `TORCH_NEURONX_NEFF_CACHE_DIR` by itself."""

    by_layer = False

    def __init__(self, runtime: Any) -> None:
        self._runtime, self._sealed, self._before = runtime, False, len(runtime.get_dynamo_metrics())

    def compile(self, run: Compiled, name: str) -> Compiled:
        """See `Maker.compile`."""
        program = torch.compile(run, backend="neuron", fullgraph=True, dynamic=False)

        def call(*arguments: Any) -> Any:
            try:
                with torch.compiler.set_stance("fail_on_recompile" if self._sealed else "default"):
                    return program(*arguments)
            except RuntimeError as error:
                if found := neuron_failure(error):
                    raise found from error
                if self._sealed and "recompil" not in str(error):
                    raise
                raise CompileFailed(f"{name}: cannot be compiled: {' '.join(str(error).split())[:300]}") from error

        return call

    def seal(self) -> None:
        """See `Maker.seal`."""
        self._sealed = True

    def compiles(self) -> int:
        """Graphs that reached the compiler, by its own counter; those found in its cache count too."""
        return len(self._runtime.get_dynamo_metrics()) - self._before

    def release(self) -> None:
        """The runtime frees programs with the functions that call them."""


class NativeKit(PlainKit):
    """One core."""

    dtypes: Mapping[str, torch.dtype] = {**PlainKit.dtypes, "float16": torch.float16}
    collectives = "neuron"
    program_bytes = 32 << 20
    rules: GridRules = NeuronRules(takes=(128, 512, 1024), waste=0.45)

    def __init__(self, index: int, memory_fraction: float) -> None:
        import torch_neuronx  # noqa: F401  registers the device and its compiler, where torch has not loaded it by itself

        self._runtime: Any = torch.neuron  # type: ignore[attr-defined]
        count = self._runtime.device_count()
        if index >= count:
            raise Unsupported(f"rank {index} of this machine needs a core of its own, and {count} can be used")
        self.device = torch.device(DEVICE, index)
        self._runtime.set_device(index)
        self._memory_fraction = memory_fraction

    def queue(self) -> NeuronQueue:
        """In lock step."""
        return NeuronQueue(self._runtime)

    def compiler(self) -> Mapping[str, str]:
        """Versions, and the chip."""
        return {"torch": torch.__version__, "torch-neuronx": installed("torch-neuronx"), "neuronx-cc": installed("neuronx-cc")}

    def maker(self, fields: Mapping[str, str], directory: Path | None) -> NeuronMaker:
        """TorchNeuron's compiler."""
        return NeuronMaker(self._runtime)

    def attention(self) -> Sequence[AttentionProvider]:
        """The static engine's, in plain torch."""
        return (FlatAttention(BLOCK_SIZES[::-1]),)

    def choices(self) -> tuple[Kernel, ...]:
        """That it is experimental."""
        name = f"TorchNeuron {installed('torch-neuronx')}"
        return (Kernel("device", name, "experimental: plain torch, no NKI kernels; not run on a device by its authors"),)

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The static engine's runner."""
        return StaticRunner(self, weights, progress)

    def free_bytes(self) -> int:
        """The core's memory less the operator's reserve and what torch holds of it."""
        self._runtime.synchronize()
        total = int(self._runtime.get_device_properties(self.device.index).total_memory)
        return max(0, int(self._memory_fraction * total) - int(self._runtime.memory_allocated(self.device.index)))

    def default_rows(self) -> int:
        """Few, since each number of rows is compiled."""
        return 32

    def default_step_tokens(self) -> int:
        """The largest chunk, beside all decode rows."""
        return 1056
