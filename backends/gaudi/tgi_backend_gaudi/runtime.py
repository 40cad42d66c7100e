"""Acquiring a Gaudi, and `torch.hpu` with the signatures of torch's other device modules, as far as the kit needs them.

It has no `empty_cache`, its `synchronize` and `is_bf16_supported` take no argument, and a process has one device.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tgi_core.backend import Group, Unsupported
from tgi_core.engine.accelerator.failures import FailureTexts, device_errors

FAILURES = FailureTexts(
    busy=("device acquire failed", "device not found", "no device found", "device or resource busy"),
    memory=("syn_out_of_resources", "synoutofresources", "failed to allocate", "allocation failed", "no free memory"),
    tool="hl-smi",
    compiler=("graph compile failed", "compilation failed", "synfailedcompile", "failed to compile"),
    peers=("hccl", "remote rank"),
    lost=("synstatus", "syndevicereset", "device reset", "device lost", "hardware error"),
)


class HabanaRuntime:
    """See `Runtime`."""

    device_type = "hpu"
    """torch's."""

    def __init__(self, hpu: Any) -> None:
        self._hpu = hpu
        self._metrics = importlib.import_module("habana_frameworks.torch.hpu.metrics")

    def device_count(self) -> int:
        """The devices that this process and its siblings may use."""
        return int(self._hpu.device_count())

    def get_device_name(self, device: torch.device) -> str:
        """GAUDI2, GAUDI3."""
        return str(self._hpu.get_device_name())

    def set_device(self, device: torch.device) -> None:
        """Acquire the process's device."""
        self._hpu.set_device(device)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Always."""
        return bool(self._hpu.is_bf16_supported())

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """(free, total) in bytes."""
        free, total = self._hpu.mem_get_info()
        return int(free), int(total)

    def empty_cache(self) -> None:
        """Does nothing: memory that torch has freed counts as free there."""

    def mark(self) -> Any:
        """An event at the end of the process's stream."""
        event = self._hpu.Event()
        event.record()
        return event

    def compiled(self) -> int:
        """Recipes that were compiled in this process."""
        return int(dict(self._metrics.metric_global("graph_compilation").stats()).get("TotalNumber", 0))


def acquire(group: Group) -> HabanaRuntime:
    """Import the bridge, and acquire the rank's device. Raises Unsupported, DeviceBusy.

    A device that cannot be acquired is found before the engine is imported and the model is read.
    """
    try:
        import habana_frameworks.torch as habana
    except (AssertionError, ImportError, OSError, RuntimeError) as error:
        raise Unsupported(f"habana_frameworks cannot be imported: {' '.join(str(error).split())[:300]}") from error
    if habana.utils.internal.is_lazy():
        raise Unsupported("habana_frameworks was loaded in lazy mode before this backend: set PT_HPU_LAZY_MODE=0")
    hpu: Any = torch.hpu  # type: ignore[attr-defined]
    if group.local_rank >= (count := hpu.device_count()):
        raise Unsupported(
            f"--num-shard {group.world}: rank {group.local_rank} needs its own device, but only {count} can be used"
        )
    if group.world > 1:
        from habana_frameworks.torch.distributed import hccl

        hccl.initialize_distributed_hpu(world_size=group.world, rank=group.rank, local_rank=group.local_rank)
    runtime = HabanaRuntime(hpu)
    with device_errors(FAILURES):
        runtime.set_device(torch.device(runtime.device_type, 0))
    return runtime
