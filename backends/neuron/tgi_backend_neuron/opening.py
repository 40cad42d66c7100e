"""Opens a model for optimum-neuron: what can be refused is refused before any of the vendor's libraries is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tgi_backend_neuron.artefact import Wanted, loaded
from tgi_backend_neuron.finding import Machine, busy_cores, find_machine, installed
from tgi_backend_neuron.slots import SlotRunner, SlotSession
from tgi_backend_neuron.source import Source
from tgi_core.backend import DeviceBusy, DeviceLost, Kernel, OpenOptions, OutOfMemory, Probe, ProbeStatus, Progress, Unsupported

_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), torch.bfloat16),
    **dict.fromkeys(("fp16", "float16", "half"), torch.float16),
    **dict.fromkeys(("fp32", "float32"), torch.float32),
}
"""By torch's names, and by those of HF_AUTO_CAST_TYPE."""
CORES, CAST = "HF_NUM_CORES", "HF_AUTO_CAST_TYPE"
"""Variables of TGI's Neuron backend, which count where the flags --num-shard and --dtype are not given."""


def open_slots(options: OpenOptions, found: Probe, environment: Mapping[str, str] = os.environ) -> SlotSession:
    """A session over a checkpoint, or over a model that is compiled already. Raises InvalidModel, Unsupported, DeviceBusy, OutOfMemory;
    DeviceLost where there is no device."""
    source = Source.read(Path(options.model))
    machine = find_machine(environment)
    if found.status is not ProbeStatus.READY or machine is None:
        raise DeviceLost(f"{found.reason}; {found.hint}")
    if options.adapters:
        raise Unsupported("--lora-adapters: compiled models hold no adapters; leave it out")
    dtype, cores = _dtype(options, source, environment), _cores(options, source, machine, environment)
    shape = source.shape(dtype)
    free = int(cores * machine.core_bytes * options.memory_fraction) - shape.weight_bytes
    if free <= 0:
        raise OutOfMemory(
            f"weights of {shape.weight_bytes:,} bytes in {shape.weights[0].name}: {cores} cores of {machine.instance} have "
            f"{cores * machine.core_bytes:,}; use more cores (--num-shard), or a smaller --dtype"
        )

    def wanted(slots: int, length: int) -> Wanted:
        asked = Wanted(slots, length, cores, str(dtype).removeprefix("torch."), machine.target)
        if source.compiled:
            asked.check(source.directory)
        return asked

    def load(slots: int, length: int, progress: Progress) -> tuple[Any, int]:
        return loaded(source.directory, wanted(slots, length), options.compile_cache, progress)

    compiled = (source.compiled["batch_size"], source.compiled["sequence_length"]) if source.compiled else None
    if compiled:
        wanted(*compiled)
    check_free(machine, cores)
    name = f"optimum-neuron {installed('optimum-neuron')}"
    runner = SlotRunner(load, shape, source.position_bytes(dtype, cores), free, name, compiled)
    return SlotSession(runner, shape, options.masks, (Kernel("device", str(machine), f"tensor parallel over {cores} cores"),))


@cache
def check_free(machine: Machine, cores: int) -> None:
    """Raises DeviceBusy if too few cores are free. Asked before the first model of a process, whose own cores are taken from then on."""
    busy = busy_cores(machine) & set(machine.cores)
    if len(machine.cores) - len(busy) < cores:
        raise DeviceBusy(
            f"{machine.instance}: {cores} Neuron cores are needed, and of {len(machine.cores)} another process holds "
            f"{', '.join(map(str, sorted(busy)))}; neuron-ls shows which, NEURON_RT_VISIBLE_CORES chooses others"
        )


def _dtype(options: OpenOptions, source: Source, environment: Mapping[str, str]) -> torch.dtype:
    setting, asked = "--dtype", options.dtype
    if asked == "auto":
        setting, asked = (CAST, environment[CAST]) if environment.get(CAST) else (f"{source.directory}: dtype", source.dtype)
    if asked not in _DTYPES:
        raise Unsupported(f"{setting} {asked}: Neuron devices run bfloat16, float16, float32")
    return _DTYPES[asked]


def _cores(options: OpenOptions, source: Source, machine: Machine, environment: Mapping[str, str]) -> int:
    """Cores that share the model: as many as --num-shard or HF_NUM_CORES says, as it was compiled for, or all that are visible."""
    setting, asked = "--num-shard", options.group.world
    if asked == 1:
        setting, asked = CORES, environment.get(CORES) or source.compiled.get("tp_degree") or len(machine.cores)
    if not str(asked).isdigit() or not 1 <= int(asked) <= len(machine.cores):
        raise Unsupported(f"{setting} {asked}: {len(machine.cores)} Neuron cores are visible on {machine.instance}")
    return int(asked)
