"""Cost of `plan` and `complete`: microseconds per step as a + b · n for n running requests."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

from tgi_core.backend import CacheGroup, CacheKind, Capacity, Sampling
from tgi_core.backend.reference import ReferenceSession
from tgi_core.scheduler import GenerationRequest, Scheduler
from tgi_core.wire.types import Generation, Prefill, StepResult, Stopping, Token, TurnResult

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_CAPACITY = Capacity((CacheGroup(CacheKind.FULL, 16, 100_000),), 1024, 8192, 8192, 1024)


@dataclass(frozen=True, slots=True)
class Line:
    """Microseconds: `a` per step, `b` per running request in it."""

    a: float
    b: float


def measure(running: int, steps: int) -> float:
    """Median microseconds of plan and complete for a step in which each of `running` requests generates a token."""
    scheduler = Scheduler(ReferenceSession().capabilities(), _CAPACITY)
    for number in range(running):
        prompt = tuple(range(number % 200, number % 200 + 5 + number % 16))
        scheduler.add(GenerationRequest.of(prompt, Sampling(), Stopping(4000, ignore_eos=True)))
    rows: list[Generation] = []
    spent: list[int] = []
    gc.collect()
    gc.disable()
    for _ in range(steps + 3):
        start = perf_counter_ns()
        turn = scheduler.plan()
        planned = perf_counter_ns()
        if isinstance(turn.launch, Prefill):
            rows += [Generation(item.id, (Token(7, "x", 0.0, special=False),)) for item in turn.launch.requests]
        result = TurnResult(result=StepResult(0 if turn.launch is None else turn.launch.step, tuple(rows)))
        answered = perf_counter_ns()
        scheduler.complete(result)
        spent.append(planned - start + perf_counter_ns() - answered)
    gc.enable()
    return median(spent[3:]) / 1e3


def fit(costs: dict[int, float]) -> Line:
    """Fit a line by least squares of relative errors, so that small sizes count as much as large ones."""
    weights = {size: 1 / cost**2 for size, cost in costs.items()}
    total = sum(weights.values())
    mean_n = sum(weight * size for size, weight in weights.items()) / total
    mean_cost = sum(weight * costs[size] for size, weight in weights.items()) / total
    covariance = sum(weight * (size - mean_n) * (costs[size] - mean_cost) for size, weight in weights.items())
    variance = sum(weight * (size - mean_n) ** 2 for size, weight in weights.items())
    b = covariance / variance
    return Line(mean_cost - b * mean_n, b)
