"""What a device must survive: a capture that fails, an allocation that finds no room, and a memory checker over every kernel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tgi_conformance
import torch

from bench.gpu_parts.driving import Driver, Lengths
from bench.gpu_parts.place import Figures, Place
from tgi_core.backend import BackendError, OutOfMemory
from tgi_core.engine.device_queue import CannotCapture
from tgi_core.engine.selection import attempt

_MIB = 2**20
_CHECKER = """
import torch
from bench.gpu_parts.place import Place
from bench.gpu_parts.self_checks import every_kernel_once
for line in every_kernel_once(Place("cuda", False, None, 0.0)):
    print(line, flush=True)
"""


def recovery(place: Place) -> Figures:
    """Whether a failed capture and a failed allocation leave the device as it was."""
    return {
        "after a capture that waits": attempt(lambda: _after_a_failed_capture(place)) or "captures, allocates and frees",
        "out of memory": attempt(lambda: _out_of_memory(place)) or "told, and the next step runs",
    }


def _after_a_failed_capture(place: Place) -> str:
    """A capture with a wait in it fails; then the allocator gives memory back, and another capture replays."""
    kit = place.kit()
    queue = kit.queue()
    graphs = queue.graphs() if queue is not None else "no queue"
    if queue is None or isinstance(graphs, str):
        return f"no graphs: {graphs}"
    held = torch.ones(256, device=kit.device)
    try:
        graphs.capture(lambda: (held.sum().item(), None)[1])
    except CannotCapture:
        pass
    else:
        return "a capture with a wait in it was accepted"
    module = torch.get_device_module(kit.device)
    large = torch.empty(512 * _MIB, dtype=torch.uint8, device=kit.device)
    reserved = module.memory_reserved()
    del large
    module.empty_cache()
    if module.memory_reserved() > reserved - 500 * _MIB:
        return "memory is not given back after it"
    graph = graphs.capture(lambda: (held.add_(1), None)[1])
    before = float(held[0])
    graph.replay()
    queue.wait()
    return "" if float(held[0]) == before + 1 else "a capture after it does not replay"


def _out_of_memory(place: Place) -> str:
    """A step that finds no room for its activations is told so, and the same step runs once there is room."""
    model = Path(tgi_conformance.__file__).with_name("golden") / "models" / "llama"
    driver = Driver(place, model, 256, 2048, 8192)
    driver.run([Lengths(8, 2)])
    device = place.kit().device
    module = torch.get_device_module(device)
    module.empty_cache()
    taken = list(_all_memory(device))
    told = ""
    try:
        driver.run([Lengths(1000, 2)] * 8)
        told = "the step found room although none was left"
    except OutOfMemory:
        pass
    except BackendError as error:
        told = f"{type(error).__name__} instead of OutOfMemory: {error}"
    taken.clear()
    module.empty_cache()
    driver.session.clear(None)
    driver.run([Lengths(1000, 2)] * 8)
    driver.close()
    return told


def _all_memory(device: torch.device) -> Iterator[torch.Tensor]:
    """Everything that is left, in pieces."""
    for size in (1024 * _MIB, 64 * _MIB, 2 * _MIB, _MIB // 2):
        while True:
            try:
                yield torch.empty(size, dtype=torch.uint8, device=device)
            except torch.OutOfMemoryError:
                break


def sanitizer(place: Place) -> Figures:
    """compute-sanitizer's memcheck over the self-check of every kernel."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return {"not run": "compute-sanitizer is not installed"}
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "5", sys.executable, "-c", _CHECKER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(5.0, place.left - 3), check=False)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace").splitlines()
        return {"not run": f"not done in time; the last line: {said[-1] if said else 'none'}"}
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "========= " in line]
    return {
        "exit status": done.returncode,
        "kernels run": sum("========" not in line for line in lines),
        "summary": errors[-1] if errors else lines[-1] if lines else "nothing was printed",
        **{f"error {number}": line for number, line in enumerate(errors[1:9], 1) if done.returncode},
    }
