"""How long a device takes for a step, by the roofline, and how long it must take for a whole trace at the least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.scheduling.trace import Arrival


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds: to launch a step, to read the weights, to compute a token, to read a token's keys and values.

    The defaults are a model of 7 billion parameters in 16 bits on a device of 250 TFLOP/s and 1.5 TB/s.
    """

    launch: float = 0.5e-3
    weights: float = 9.3e-3
    token: float = 56e-6
    context: float = 0.35e-6
    max_rows: int = 128
    max_step_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = 7500

    def step(self, rows: Iterable[tuple[int, int]]) -> float:
        """A step of rows, each with its tokens computed and its tokens in the cache."""
        tokens = context = 0
        for take, cached in rows:
            tokens += take
            context += cached
        return self.launch + max(tokens * self.token, self.weights + context * self.context)

    def bound(self, arrivals: list[Arrival]) -> float:
        """No schedule is done earlier: the largest of all computation, all reading, and the longest request by itself."""
        tokens = sum(item.prompt + item.answer - 1 for item in arrivals)
        steps = max(max(item.answer for item in arrivals), -(-sum(item.answer for item in arrivals) // self.max_rows))
        context = sum((item.answer - 1) * (item.prompt + item.answer / 2) for item in arrivals)
        reading = steps * (self.launch + self.weights) + context * self.context
        return max(tokens * self.token, reading, max(item.at + self._alone(item) for item in arrivals))

    def _alone(self, item: Arrival) -> float:
        """The shortest time for one request: its prompt in full steps, then a token a step."""
        prompt = -(-item.prompt // self.max_step_tokens) * self.launch + max(item.prompt * self.token, self.weights)
        return prompt + (item.answer - 1) * (self.launch + self.weights)


@dataclass(frozen=True, slots=True)
class Served:
    """One request's times in seconds from the beginning of the run, and how many tokens it got."""

    arrival: Arrival
    first: float
    last: float

    @property
    def good(self) -> bool:
        """Whether its client was content: a first token within 2 s, then 10 a second."""
        pace = (self.last - self.first) / max(1, self.arrival.answer - 1)
        return self.first - self.arrival.at <= 2.0 and pace <= 0.1
