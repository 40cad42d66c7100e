"""The plugin hooks. Importing this module does not import torch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tgi_backend_cpu import __version__
from tgi_backend_cpu.limits import cpu_count, cpu_name
from tgi_backend_cpu.picks import build_ahead
from tgi_core.backend import Manifest, OpenOptions, Probe, ProbeStatus, Progress, hookimpl
from tgi_core.engine.lora.files import open_adapter
from tgi_core.engine.weights.sizes import check_model

if TYPE_CHECKING:
    from tgi_backend_cpu.kit import CpuKit

_NEEDED = ("numpy", "torch", "transformers", "safetensors")


@hookimpl
def backend_manifest() -> Manifest:
    """The plugin's manifest."""
    return Manifest("cpu", "tgi-core", __version__, api_built=(1, 10), api_requires=(1, 2), device_kind="cpu")


@hookimpl
def backend_probe() -> Probe:
    """Every machine has a CPU, but packages may be missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Probe(ProbeStatus.BROKEN, reason=f"not installed: {', '.join(missing)}", hint="pip install tgi-backend-cpu")
    return Probe(ProbeStatus.READY, devices=(f"{cpu_name()}, {cpu_count()} threads",), verified_on_hardware=True)


@hookimpl
def backend_open(options: OpenOptions, progress: Progress) -> object:
    """Load the model. Raises InvalidModel, Unsupported, OutOfMemory."""
    check_model(Path(options.model))  # finds damaged and absurd models before torch is loaded, which takes seconds
    for adapter in options.adapters:
        open_adapter(adapter)
    kit = _open_kit(options, progress)
    from tgi_core.engine.open_model import open_session

    return open_session(options, kit, progress)


@hookimpl
def backend_plan(options: OpenOptions, progress: Progress, free_bytes: int | None) -> object:
    """What `backend_open` would choose, and how much memory it would take. Raises InvalidModel, Unsupported."""
    check_model(Path(options.model))
    kit = _open_kit(options, progress)
    from tgi_core.engine.planning import plan_session

    return plan_session(options, kit, free_bytes)


def _open_kit(options: OpenOptions, progress: Progress) -> CpuKit:
    ranks = options.group.local_world
    fault = build_ahead(os.environ, progress)  # before torch is loaded, so that the wait is explained
    set_up_openmp(ranks)
    from tgi_backend_cpu.kit import CpuKit

    return CpuKit(thread_count(os.environ, ranks), options.memory_fraction, ranks, fault).with_cache(options.cache_dtype)


def set_up_openmp(ranks: int = 1) -> None:
    """Set the variables that OpenMP reads when torch loads it, for one of `ranks` ranks on this machine; the operator's settings win.

    A waiting thread spins for about ten microseconds, then sleeps. Measured on 2 cores at batch 1: sleeping at once costs 20 % on an
    idle machine, since a step has hundreds of short waits; spinning ten times as long costs half if another process wants a core.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "500")
    os.environ.setdefault("OMP_NUM_THREADS", str(_share(ranks)))


def thread_count(environment: Mapping[str, str], ranks: int = 1) -> int:
    """The operator's OMP_NUM_THREADS (the first level, if it has several), else this rank's share of the cores."""
    asked = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdigit() and int(asked) else _share(ranks)


def _share(ranks: int) -> int:
    """This rank's share of the cores. Ranks wait for each other at every layer, so more threads than cores would be slower."""
    return max(1, cpu_count() // ranks)
