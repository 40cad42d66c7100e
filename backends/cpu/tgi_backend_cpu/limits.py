"""The cores and memory that this process may use, with control groups v1 and v2.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html and …/cgroup-v1/memory.html, proc(5).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes: `total` is this process's limit, `available` what it can still allocate."""

    total: int
    available: int


def cpu_count(cgroup: Path = CGROUP, proc: Path = PROC) -> int:
    """Cores to run threads on: the affinity mask (which a cpuset narrows), limited by the quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min((_cpu_quota(folder) for folder in _folders(cgroup, proc, "cpu")), default=math.inf)
    return max(1, min(affinity, math.ceil(quota) if quota < affinity else affinity))


def cpu_name(proc: Path = PROC) -> str:
    """The model name of the first core."""
    for line in _read(proc / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def memory_limit(cgroup: Path = CGROUP, proc: Path = PROC) -> MemoryLimit:
    """The machine's memory, or a control group's limit if that is lower."""
    total = _meminfo(proc, "MemTotal")
    available = _meminfo(proc, "MemAvailable")
    for folder in _folders(cgroup, proc, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= total:
            continue
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        # The page cache counts as used, but is dropped when memory is needed.
        total, available = min(total, limit), min(available, max(0, limit - used + _page_cache(folder)))
    return MemoryLimit(total, available)


def _folders(cgroup: Path, proc: Path, controller: str) -> list[Path]:
    """This process's control groups up to the root, for a controller; limits of parents apply as well."""
    folders: list[Path] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base = cgroup / controller if names else cgroup
        # Inside a container the path may be the host's; the mount is then the group itself.
        group = base / path.lstrip("/")
        group = group if group.is_dir() else base
        while group != base:
            folders.append(group)
            group = group.parent
        folders.append(base)
    return folders


def _cpu_quota(folder: Path) -> float:
    fields = _read(folder / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) / int(fields[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else math.inf


def _page_cache(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _meminfo(proc: Path, name: str) -> int:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _number(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
