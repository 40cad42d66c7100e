"""Protocol between harness and engine: one process per engine in its own virtual environment, one JSON object per line.

    {"do": "open", "model": …, "rows": …, "row_tokens": …, "step_tokens": …, "weights": …}   loads the model;
                                                    returns the engine's description
    {"do": "start", "prompts": [[ids]], "new": n}   until each prompt has its first token
    {"do": "go_on", "steps": n}                     until each row has n more tokens
    {"do": "end"}                                   returns the ids of all new tokens

Every answer includes seconds, seconds of CPU time, and the number of tokens so far. Engines are idle between commands, so that they
can take turns. An engine that fails exits with the reason on standard error. This module needs only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Plan:
    """The model and the limits of a run: rows at once, tokens per row, tokens of all prompts together. `weights` is what they are
    quantized to, "int8" or "int4", as the engine does it by default; empty: bfloat16."""

    model: Path
    rows: int
    row_tokens: int
    step_tokens: int
    weights: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """An engine's version, number formats for compute and cache, and settings."""

    version: str
    precision: str
    cache: str
    flags: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """An engine that works in steps, with greedy sampling and without end-of-sequence tokens."""

    def about(self) -> About:
        """The engine's description."""

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Run until each prompt has its first token; returns the number of new tokens. Rows will get `new` tokens in total."""

    def go_on(self, steps: int) -> int:
        """Run until each row has `steps` more tokens; returns the number of new tokens so far."""

    def end(self) -> list[list[int]]:
        """Return all new tokens by row and discard them."""


def serve(opened: Callable[[Plan], Engine]) -> None:
    """Answer commands until standard input ends. Output of libraries is redirected to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        command = json.loads(line)
        begin, used = time.perf_counter(), time.process_time()
        if command["do"] == "open":
            names = ("rows", "row_tokens", "step_tokens")
            engine = opened(Plan(Path(command["model"]), **{name: command[name] for name in names}, weights=command["weights"]))
            answer: dict[str, Any] = asdict(engine.about())
        else:
            assert engine is not None  # noqa: S101 - the harness opens first
            answer = _step(engine, command)
        answer |= {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - used}
        print(json.dumps(answer), file=answers, flush=True)


def _step(engine: Engine, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "start":
        return {"tokens": engine.start(command["prompts"], command["new"])}
    if command["do"] == "go_on":
        return {"tokens": engine.go_on(command["steps"])}
    return {"ids": engine.end()}
