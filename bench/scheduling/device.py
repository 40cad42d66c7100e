"""Roofline model of a device: duration of a step, and a lower bound for a trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tgi_core.benchmark.trace import Arrival
from tgi_core.scheduler.prefill_budget import padded_size


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds to launch a step, to read the weights, to compute a token, and to read a token's keys and values.

    The defaults are a model of 7 billion parameters in 16 bits on a device of 250 TFLOP/s and 1.5 TB/s. It pads each prompt's part
    of a step to one of the sizes `takes`, if there are any.
    """

    launch: float = 0.5e-3
    weights: float = 9.3e-3
    token: float = 56e-6
    context: float = 0.35e-6
    max_rows: int = 128
    max_step_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = 7500
    takes: tuple[int, ...] = ()

    def step(self, rows: Iterable[tuple[int, int]]) -> float:
        """Duration of a step of rows, each given as tokens to compute and tokens in the cache."""
        tokens = context = 0
        for take, cached in rows:
            tokens += self.computed(take)
            context += cached
        return self.launch + max(tokens * self.token, self.weights + context * self.context)

    def computed(self, take: int) -> int:
        """Tokens computed for a row that takes `take`; one token runs in the program of the rows that decode."""
        return padded_size(take, self.takes) if take > 1 else take

    def bound(self, arrivals: list[Arrival]) -> float:
        """Lower bound for any schedule: the maximum of total compute, total reads and the longest single request."""
        tokens = sum(item.prompt + item.answer - 1 for item in arrivals)
        steps = max(max(item.answer for item in arrivals), -(-sum(item.answer for item in arrivals) // self.max_rows))
        context = sum((item.answer - 1) * (item.prompt + item.answer / 2) for item in arrivals)
        reading = steps * (self.launch + self.weights) + context * self.context
        return max(tokens * self.token, reading, max(item.at + self._alone(item) for item in arrivals))

    def _alone(self, item: Arrival) -> float:
        """Shortest time for one request: its prompt in full steps, then one token per step."""
        prompt = -(-item.prompt // self.max_step_tokens) * self.launch + max(item.prompt * self.token, self.weights)
        return prompt + (item.answer - 1) * (self.launch + self.weights)


@dataclass(frozen=True, slots=True)
class Served:
    """Times of one request in seconds since the start of the run, and its number of tokens."""

    arrival: Arrival
    first: float
    last: float

    @property
    def good(self) -> bool:
        """Whether the request met its targets: first token within 2 s, then 10 tokens per second."""
        pace = (self.last - self.first) / max(1, self.arrival.answer - 1)
        return self.first - self.arrival.at <= 2.0 and pace <= 0.1
