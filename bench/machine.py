"""Description of the machine for results."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tgi_backend_cpu.limits import cpu_name, memory_limit

from bench.chip import chip

_WIDE = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "avx_vnni")


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """CPU, instruction sets relevant to kernels, both present and missing, memory, and current load."""
    flags = next((line.partition(":")[2].split() for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), [])
    return {
        "cpu": cpu_name(),
        "chip": chip(cpuinfo),
        "cores": len(os.sched_getaffinity(0)),
        "has": [name for name in _WIDE if name in flags],
        "lacks": [name for name in _WIDE if name not in flags],
        "memory_gib": round(memory_limit().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }
