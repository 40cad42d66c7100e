"""What drafts cost and bring on this CPU, with a drafter that is right at a given rate.

    python bench/speculation.py [MODEL] [--drafts 3] [--rates 0 0.3 0.6 0.9] [--batch 1 4 8 32] [--steps 24] [--json OUT]

Drives the CPU backend through its session. The drafts of a row are the tokens that it makes without speculation, each one replaced by
another at the rate of failures. Steps with and without drafts alternate, so that noise affects both. `expected` is the gain that theory
allows: tokens per step, (1 - a^(k + 1)) / (1 - a), over the measured ratio of step times. Without MODEL, creates a Llama in
SmolLM2-135M's shape with random bfloat16 weights in the user's cache directory.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tgi_backend_cpu import plugin

plugin.set_up_openmp()  # as the shard does, before importing torch
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.random_model import make
from tgi_core.backend import EMPTY, Capacity, Grant, OpenOptions, Request, Step, WarmupPlan
from tgi_core.backend.session import Session

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


class Rows:
    """Rows that decode together in a session."""

    def __init__(self, session: Session, capacity: Capacity, prompts: list[list[int]], longest: int) -> None:
        self._session = session
        size = capacity.groups[0].block_size
        each = -(-longest // size)
        self.tokens: dict[int, list[int]] = {}
        self._steps: list[Step] = []
        at_once = max(1, capacity.max_step_tokens // PROMPT)
        requests = [
            Request(id, tuple(prompt), len(prompt), 0, (tuple(range(1 + id * each, 1 + (id + 1) * each)),), len(prompt))
            for id, prompt in enumerate(prompts)
        ]
        for first in range(0, len(requests), at_once):
            step = session.prefill(tuple(requests[first : first + at_once]), EMPTY, ())
            self._steps.append(step)
            self._read(step)

    def step(self, drafts: dict[int, tuple[int, ...]]) -> tuple[float, int]:
        """Decode once; the seconds that it took and the tokens that it made."""
        grants = tuple(Grant(id, take=1 + len(tokens), drafts=tokens) for id, tokens in drafts.items() if tokens)
        start = time.perf_counter()
        self._steps = [self._session.decode(tuple(step.handle for step in self._steps), grants)]
        made = self._read(self._steps[0])
        return time.perf_counter() - start, made

    def clear(self) -> None:
        """End all rows."""
        for step in self._steps:
            self._session.clear(step.handle)

    def _read(self, step: Step) -> int:
        made = 0
        for row in self._session.rows(step).rows:
            self.tokens.setdefault(row.request_id, []).extend(row.tokens)
            made += len(row.tokens)
        return made


class Bench:
    """A model of the CPU backend that verifies up to `drafts` drafts per row."""

    def __init__(self, model: Path, rows: int, drafts: int, steps: int) -> None:
        opened = plugin.backend_open(OpenOptions(str(model), "bfloat16"), _silent)
        self._session = Session(opened, "cpu")
        self._drafts, self._steps = drafts, steps
        self._longest = PROMPT + (drafts + 2) * steps + drafts + 1
        plan = WarmupPlan(rows, self._longest, max(rows * (1 + drafts), 8 * PROMPT), draft=drafts)
        self._capacity = self._session.warmup(plan, _silent)
        self._vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        self._oracle_by_rows: dict[int, dict[int, list[int]]] = {}

    def gain(self, rows: int, rate: float, chance: random.Random) -> Gain:
        """Measure one batch at one rate of acceptance."""
        prompts = [[(31 * row + 7 * i) % self._vocabulary for i in range(PROMPT)] for row in range(rows)]
        oracle = self._oracle_of(rows, prompts)
        batch = Rows(self._session, self._capacity, prompts, self._longest)
        plain, drafted, made = [], [], 0
        for _ in range(self._steps):
            plain.append(batch.step({})[0])
            seconds, tokens = batch.step({id: self._drafts_of(oracle[id], batch.tokens[id], rate, chance) for id in oracle})
            drafted.append(seconds)
            made += tokens
        batch.clear()
        if any(batch.tokens[id] != oracle[id][: len(batch.tokens[id])] for id in oracle):
            raise RuntimeError("drafts changed a token")
        return Gain(rows, rate, self._drafts, median(plain), median(drafted), made / rows / self._steps)

    def _oracle_of(self, rows: int, prompts: list[list[int]]) -> dict[int, list[int]]:
        """The tokens of each row without speculation."""
        if rows not in self._oracle_by_rows:
            batch = Rows(self._session, self._capacity, prompts, self._longest)
            for _ in range(self._longest - PROMPT - 1):
                batch.step({})
            batch.clear()
            self._oracle_by_rows[rows] = batch.tokens
        return self._oracle_by_rows[rows]

    def _drafts_of(self, oracle: list[int], made: list[int], rate: float, chance: random.Random) -> tuple[int, ...]:
        coming = oracle[len(made) : len(made) + self._drafts]
        return tuple(token if chance.random() < rate else (token + 1) % self._vocabulary for token in coming)


def _silent(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""


def report(gains: list[Gain]) -> str:
    """A line per measurement."""
    lines = ["rows  drafts  rate  step ms  with drafts  tokens/step  gain  expected"]
    for gain in gains:
        times = f"{1e3 * gain.plain_s:7.2f}  {1e3 * gain.drafted_s:11.2f}"
        made = f"{gain.tokens:11.2f}  {gain.measured:4.2f}  {gain.expected:8.2f}"
        lines.append(f"{gain.rows:4d}  {gain.drafts:6d}  {gain.rate:4.1f}  {times}  {made}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.9])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--steps", type=int, default=24, help="steps with drafts, and as many without, per measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    bench = Bench(options.model or make("135m"), max(options.batch), options.drafts, options.steps)
    chance = random.Random(0)
    gains = [bench.gain(rows, rate, chance) for rows in options.batch for rate in options.rates]
    print(report(gains))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(gain) for gain in gains], indent=1) + "\n")


if __name__ == "__main__":
    main()
