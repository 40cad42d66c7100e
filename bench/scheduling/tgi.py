"""Simulation of TGI's policy (v3 router with chunked prefill) on the same clock.

Admission is first in, first out without overtaking, and reserves blocks for the prompt and the longest possible answer. Prompts
take the rest of the step's token budget; the last one admitted is truncated to a chunk, and later chunks share what the decoding
rows leave.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bench.scheduling.device import Roofline, Served
from bench.scheduling.trace import LONGEST_ANSWER
from tgi_core.benchmark.trace import Arrival


@dataclass(slots=True)
class Row:
    """A request in the batch."""

    arrival: Arrival
    blocks: int
    computed: int = 0
    made: int = 0
    first: float = 0.0


def run(roofline: Roofline, arrivals: list[Arrival]) -> list[Served]:
    """Serve all requests."""
    waiting, queue = deque(arrivals), deque[Arrival]()
    running: list[Row] = []
    served: list[Served] = []
    now, free = 0.0, roofline.num_blocks
    while waiting or queue or running:
        if not queue and not running:
            now = max(now, waiting[0].at)
        while waiting and waiting[0].at <= now:
            queue.append(waiting.popleft())
        takes = _takes(roofline, running)
        free = _admit(roofline, queue, running, takes, free)
        now += roofline.step((take, row.computed) for row, take in zip(running, takes, strict=True))
        for row, take in zip(running, takes, strict=True):
            _advance(row, take, now)
        served += [Served(row.arrival, row.first, now) for row in running if row.made == row.arrival.answer]
        free += sum(row.blocks for row in running if row.made == row.arrival.answer)
        running = [row for row in running if row.made < row.arrival.answer]
    return served


def _takes(roofline: Roofline, running: list[Row]) -> list[int]:
    """Tokens per running row: one once its prompt is complete, otherwise a chunk from the remaining budget, last row first."""
    takes = [1] * len(running)
    budget = roofline.max_step_tokens - len(running)
    for place in range(len(running) - 1, -1, -1):
        left = running[place].arrival.prompt - running[place].computed
        if left > 1:
            extra = min(left - 1, max(0, budget))
            takes[place] += extra
            budget -= extra
    return takes


def _admit(roofline: Roofline, queue: deque[Arrival], running: list[Row], takes: list[int], free: int) -> int:
    """Fill the step from the front of the queue. Returns the remaining blocks."""
    budget = roofline.max_step_tokens - sum(takes)
    while queue and budget > 0 and len(running) < roofline.max_rows:
        item = queue[0]
        blocks = -(-(item.prompt + LONGEST_ANSWER - 1) // roofline.block_size)
        if blocks > free:
            break
        queue.popleft()
        running.append(Row(item, blocks))
        takes.append(min(item.prompt, budget))
        budget -= takes[-1]
        free -= blocks
    return free


def _advance(row: Row, take: int, now: float) -> None:
    row.computed += take
    if row.computed >= row.arrival.prompt:
        row.made += 1
        row.first = row.first or now
