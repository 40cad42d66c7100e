"""Synthetic request traces with the statistics of a public trace."""

from __future__ import annotations

import random
from dataclasses import replace

from tgi_core.benchmark.trace import Arrival

LONGEST_PROMPT, LONGEST_ANSWER = 14_050, 1_000
"""Maximum of the public trace, also applied to the synthetic one."""


def make(count: int, seed: int) -> list[Arrival]:
    """Synthetic conversations like the trace that Azure published in 2023: lognormal lengths, Poisson arrivals, mean 0.18 s."""
    chance, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        now += chance.expovariate(1 / 0.18)
        prompt = min(LONGEST_PROMPT, max(1, round(chance.lognormvariate(6.63, 0.985))))
        answer = min(LONGEST_ANSWER, max(1, round(chance.lognormvariate(5.02, 0.859))))
        arrivals.append(Arrival(now, prompt, answer))
    return arrivals


def at_once(arrivals: list[Arrival]) -> list[Arrival]:
    """The same requests, all arriving at the start."""
    return [replace(item, at=0.0) for item in arrivals]


def at_rate(arrivals: list[Arrival], per_second: float) -> list[Arrival]:
    """The same requests at another mean rate."""
    stretch = len(arrivals) / per_second / arrivals[-1].at
    return [replace(item, at=item.at * stretch) for item in arrivals]
