"""Cores and memory that a process may use, read from made-up /proc and /sys/fs/cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from tgi_backend_cpu.limits import cpu_count, cpu_name, memory_limit

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """Write files below root; returns its cgroup and proc folders."""
    base = {
        "proc/meminfo": f"MemTotal: {16 * 2**20} kB\nMemAvailable: {12 * 2**20} kB\n",
        "proc/cpuinfo": "model name\t: Zen 4\n",
    }
    for name, text in (base | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "cgroup", root / "proc"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """An affinity mask of eight."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "9000000 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/cpu.max": "200000 100000\n", "cgroup/a/b/cpu.max": "max 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/\n",
                "cgroup/cpu/cpu.cfs_quota_us": "400000",
                "cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        ({"proc/self/cgroup": "3:cpu:/\n", "cgroup/cpu/cpu.cfs_quota_us": "-1", "cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cores(files: dict[str, str], cores: int, tmp_path: Path) -> None:
    """The affinity mask, cut by the tightest quota on the way to the root, in version 1 and 2, rounded up."""
    assert cpu_count(*tree(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({}, 16, 12),
        ({"proc/self/cgroup": "0::/\n", "cgroup/memory.max": "max\n"}, 16, 12),
        ({"proc/self/cgroup": "0::/\n", "cgroup/memory.max": str(4 * GIB), "cgroup/memory.current": str(GIB)}, 4, 3),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "cgroup/memory.max": str(4 * GIB),
                "cgroup/memory.current": str(3 * GIB),
                "cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            4,
            2,
        ),
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/memory.max": str(2 * GIB), "cgroup/a/b/memory.max": str(8 * GIB)}, 2, 2),
        ({"proc/self/cgroup": "9:memory:/x\n", "cgroup/memory/x/memory.limit_in_bytes": str(GIB)}, 1, 1),
        ({"proc/self/cgroup": "9:memory:/\n", "cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)}, 16, 12),
        ({"proc/self/cgroup": "0::/gone\n", "cgroup/memory.max": str(6 * GIB)}, 6, 6),
    ],
)
def test_memory(files: dict[str, str], total: int, available: int, tmp_path: Path) -> None:
    """The machine's memory, or the tightest limit above the process; page cache counts as free."""
    found = memory_limit(*tree(tmp_path, files))
    assert (found.total, found.available) == (total * GIB, available * GIB)


def test_name(tmp_path: Path) -> None:
    """The processor says what it is, and a machine without /proc/cpuinfo is a CPU all the same."""
    assert cpu_name(tree(tmp_path, {})[1]) == "Zen 4"
    assert cpu_name(tmp_path / "nowhere") == "CPU"
