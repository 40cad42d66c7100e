"""How the harness speaks to an engine: one process per engine, in a virtual environment of its own, one JSON object per line.

    {"do": "open", "model": …, "rows": …, "row_tokens": …, "step_tokens": …}   reads the model; answers what the engine is
    {"do": "start", "prompts": [[ids]], "new": n}   until each prompt has its first token
    {"do": "go_on", "steps": n}                     until each row has n tokens more
    {"do": "end"}                                   answers the ids of all new tokens

Every answer tells seconds, seconds of CPU time, and how many tokens there are by now. Between commands an engine computes nothing, so
that engines can take turns. An engine that fails ends, with the reason on standard error. Only the standard library is needed here.
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
    """The model, and the most that will be asked for: rows at once, tokens of a row, tokens of all prompts at once."""

    model: Path
    rows: int
    row_tokens: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class About:
    """What an engine is: its version, the number formats it computes and keeps its cache in, and the settings that it got."""

    version: str
    precision: str
    cache: str
    flags: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """An engine that works in steps. Greedy, and no token ends a row."""

    def about(self) -> About:
        """What it is."""

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Until each has its first token; how many tokens that made. A row will have `new` in the end."""

    def go_on(self, steps: int) -> int:
        """Until each row has `steps` more; how many tokens there are now."""

    def end(self) -> list[list[int]]:
        """All new tokens by row; they are forgotten."""


def serve(opened: Callable[[Plan], Engine]) -> None:
    """Answer commands until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        command = json.loads(line)
        begin, used = time.perf_counter(), time.process_time()
        if command["do"] == "open":
            names = ("rows", "row_tokens", "step_tokens")
            engine = opened(Plan(Path(command["model"]), **{name: command[name] for name in names}))
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
