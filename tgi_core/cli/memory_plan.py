"""The memory plan printed at startup."""

from __future__ import annotations

import sys

from tgi_core.backend import Capacity
from tgi_core.telemetry.logs import announce
from tgi_core.wire.types import ShardInfo


def lines(backend: str, info: ShardInfo, capacity: Capacity, divided: bool, replicas: int = 1) -> list[tuple[str, str]]:
    """Name and value of each row. If the model is split over ranks, memory is per rank; with replicas, everything is per replica."""
    rows = [("backend", f"{backend} ({info.device_kind})")]
    if replicas > 1:
        rows.append(("replicas", f"{replicas}; for each of them:"))
    memory = "memory of each rank" if divided else "memory"
    rows += [(f"{memory}: {item.name}", mebibytes(item.num_bytes)) for item in capacity.memory]
    for group in capacity.groups:
        tokens = group.num_blocks * group.block_size
        rows.append(
            (f"cache: {group.kind.value}", f"{group.num_blocks:,} blocks of {group.block_size:,} tokens = {tokens:,} tokens")
        )
    rows += [
        ("requests in a batch", f"{capacity.max_rows:,}"),
        ("tokens per request", f"{capacity.max_row_tokens:,}"),
        ("tokens per step", f"{capacity.max_step_tokens:,}"),
    ]
    return rows


def mebibytes(num_bytes: int) -> str:
    """A size as it is printed."""
    return f"{num_bytes / 2**20:,.1f} MiB"


def print_memory_plan(backend: str, info: ShardInfo, capacity: Capacity, divided: bool, replicas: int = 1) -> None:
    """Print the table to standard error."""
    rows = lines(backend, info, capacity, divided, replicas)
    if not sys.stderr.isatty():
        for name, value in rows:
            announce(f"{name}: {value}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="memory plan", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    Console(stderr=True).print(table)
