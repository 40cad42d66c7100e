"""What `tgi_backend_neuron.native` calls of TorchNeuron 2.13, with its signatures, on the CPU: `torch.neuron`, the compiler, collectives.

The compiler runs a graph as it was captured, of one shape, and refuses what the real one refuses: symbolic shapes, float64 and complex
numbers, and graph breaks (by `fullgraph`). Tensors are the CPU's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import tgi_backend_neuron.native
import torch
import torch.distributed as dist
from torch._dynamo import register_backend

CORES, CORE_BYTES = 4, 1 << 30
COMPILED: list[str] = []
"""The graphs that were compiled in this process."""
_REFUSED = (torch.float64, torch.complex64, torch.complex128)

neuron = types.ModuleType("torch.neuron")
"""The device's module."""


def is_available() -> bool:
    """Whether there is a core."""
    return True


def device_count() -> int:
    """How many cores this process may use."""
    return CORES


def set_device(device: int) -> None:
    """Make it the current one."""
    assert 0 <= device < CORES


def synchronize(device: int | None = None) -> None:
    """Wait; it is done."""


def get_device_properties(device: int | None = None) -> types.SimpleNamespace:
    """Name and memory."""
    return types.SimpleNamespace(name=f"neuron:{device or 0}", total_memory=CORE_BYTES)


def memory_allocated(device: int | None = None) -> int:
    """Nothing is counted."""
    return 0


def get_dynamo_metrics() -> list[str]:
    """An entry per graph that was compiled."""
    return list(COMPILED)


for function in (
    is_available,
    device_count,
    set_device,
    synchronize,
    get_device_properties,
    memory_allocated,
    get_dynamo_metrics,
):
    setattr(neuron, function.__name__, function)


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A captured graph as a program of the shapes of its inputs."""
    assert not [each for each in inputs if isinstance(each, torch.SymInt)], "symbolic shapes are not compiled"
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.dtype in _REFUSED:
            raise RuntimeError(f"neuronx-cc: {node.name} is {value.dtype}, which is not supported")
    COMPILED.append(graph.code)
    return graph.forward


def _group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


if "neuron" not in torch._dynamo.list_backends(exclude_tags=()):
    register_backend(compile_graph, name="neuron")
    dist.Backend.register_backend("neuron", _group, devices=["cpu"])
torch.neuron = neuron  # type: ignore[attr-defined]
sys.modules["torch.neuron"] = neuron
tgi_backend_neuron.native.DEVICE = "cpu"
