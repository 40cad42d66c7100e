"""Drafts of a given number in every step, right at a given rate, through the CPU backend's session alone.

Steps with and without drafts alternate, so that noise affects both. `expected` is the gain that theory allows: tokens per step,
(1 - a^(k + 1)) / (1 - a), over the measured ratio of step times.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.peers.engines.ours import Ours
from bench.peers.engines.protocol import Plan
from tgi_core.backend import Grant

PROMPT = 128


@dataclass(frozen=True, slots=True)
class Gain:
    """Medians over all steps: seconds of a step of `rows` rows without and with drafts, and tokens per row and step with them."""

    rows: int
    rate: float
    drafts: int
    plain_s: float
    drafted_s: float
    tokens: float

    @property
    def measured(self) -> float:
        """Tokens per second with drafts over those without."""
        return self.tokens * self.plain_s / self.drafted_s

    @property
    def expected(self) -> float:
        """The same, with the tokens per step that the rate of acceptance promises."""
        rate, count = self.rate, self.drafts + 1
        tokens = count if rate == 1 else (1 - rate**count) / (1 - rate)
        return tokens * self.plain_s / self.drafted_s


class Bench:
    """A model of the CPU backend that verifies up to `drafts` drafts per row."""

    def __init__(self, model: Path, rows: int, drafts: int, steps: int) -> None:
        self._drafts, self._steps = drafts, steps
        self._new = (drafts + 2) * steps + drafts + 1
        step_tokens = max(rows * (1 + drafts), 8 * PROMPT)
        self._engine = Ours(Plan(model, rows, PROMPT + self._new, step_tokens), draft=drafts)
        self._vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        self._oracles: dict[int, list[list[int]]] = {}

    def gain(self, rows: int, rate: float, chance: random.Random) -> Gain:
        """Measure one batch at one rate of acceptance."""
        oracle = self._oracle(rows)
        self._engine.start(self._prompts(rows), self._new)
        plain, drafted, made = [], [], 0
        for _ in range(self._steps):
            plain.append(self._seconds(()))
            before = self._made()
            drafted.append(self._seconds(self._grants(oracle, rate, chance)))
            made += self._made() - before
        answers = self._engine.end()
        if any(answer != whole[: len(answer)] for answer, whole in zip(answers, oracle, strict=True)):
            raise RuntimeError("drafts changed a token")
        return Gain(rows, rate, self._drafts, median(plain), median(drafted), made / rows / self._steps)

    def _seconds(self, grants: tuple[Grant, ...]) -> float:
        start = time.perf_counter()
        self._engine.step(grants)
        return time.perf_counter() - start

    def _made(self) -> int:
        return sum(map(len, self._engine.tokens.values()))

    def _prompts(self, rows: int) -> list[list[int]]:
        return [[(31 * row + 7 * i) % self._vocabulary for i in range(PROMPT)] for row in range(rows)]

    def _oracle(self, rows: int) -> list[list[int]]:
        """The tokens of each row without speculation."""
        if rows not in self._oracles:
            self._engine.start(self._prompts(rows), self._new)
            self._engine.go_on(self._new - 1)
            self._oracles[rows] = self._engine.end()
        return self._oracles[rows]

    def _grants(self, oracle: list[list[int]], rate: float, chance: random.Random) -> tuple[Grant, ...]:
        """Drafts for all rows, each one right at the given rate."""
        grants = []
        for (id, made), whole in zip(self._engine.tokens.items(), oracle, strict=True):
            coming = whole[len(made) : len(made) + self._drafts]
            drafts = tuple(token if chance.random() < rate else (token + 1) % self._vocabulary for token in coming)
            grants.append(Grant(id, take=1 + len(drafts), drafts=drafts))
        return tuple(grants)


def measure(model: Path, batch: Sequence[int], rates: Sequence[float], drafts: int, steps: int) -> list[Gain]:
    """Each batch at each rate, with that many steps with drafts and as many without."""
    bench, chance = Bench(model, max(batch), drafts, steps), random.Random(0)
    return [bench.gain(rows, rate, chance) for rows in batch for rate in rates]


def report(gains: list[Gain]) -> str:
    """A line per measurement."""
    lines = ["rows  drafts  rate  step ms  with drafts  tokens/step  gain  expected"]
    for gain in gains:
        times = f"{1e3 * gain.plain_s:7.2f}  {1e3 * gain.drafted_s:11.2f}"
        made = f"{gain.tokens:11.2f}  {gain.measured:4.2f}  {gain.expected:8.2f}"
        lines.append(f"{gain.rows:4d}  {gain.drafts:6d}  {gain.rate:4.1f}  {times}  {made}")
    return "\n".join(lines)
