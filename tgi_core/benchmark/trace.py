"""Request traces in the form of those that Azure published."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace: arrival time in seconds, prompt tokens, and answer tokens."""

    at: float
    prompt: int
    answer: int


def read_trace(path: Path, count: int | None) -> list[Arrival]:
    """Read the first requests of a file with the columns TIMESTAMP, ContextTokens, GeneratedTokens."""
    with path.open(newline="") as file:
        rows = list(islice(csv.DictReader(file), count))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Arrival((time - times[0]).total_seconds(), int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"])))
        for time, row in zip(times, rows, strict=True)
    ]
