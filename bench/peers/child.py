"""An engine in a child process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any, Self

from bench.peers.engines.protocol import Plan

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
"""Time limit of a command, in seconds."""


class EngineError(Exception):
    """An engine failed or returned an unexpected result."""


@dataclass(frozen=True, slots=True)
class Run:
    """One batch on one engine: rows, tokens per prompt, seconds of prefill and decode, decoded tokens."""

    rows: int
    prompt: int
    prefill_s: float
    decode_s: float
    decoded: int
    cpu_s: float

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.rows * self.prompt / self.prefill_s

    @property
    def decode_rate(self) -> float:
        """New tokens per second over all rows."""
        return self.decoded / self.decode_s


class EngineProcess:
    """Run an engine while the block runs. Raises EngineError."""

    def __init__(
        self, name: str, python: Path, module: str, environment: Mapping[str, str], log: Path, limit_s: float = LIMIT_S
    ) -> None:
        self.name = name
        self._limit_s = limit_s
        self._command = [str(python), "-m", module]
        self._environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
                text=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._child.stdin and self._child.stdout  # noqa: S101
        self._child.stdin.close()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def open(self, plan: Plan) -> dict[str, Any]:
        """Load the model; returns the engine's description."""
        return self._ask(
            do="open",
            model=str(plan.model),
            rows=plan.rows,
            row_tokens=plan.row_tokens,
            step_tokens=plan.step_tokens,
            weights=plan.weights,
        )

    def start(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, Any]:
        """Run until each prompt has its first token."""
        return self._ask(do="start", prompts=prompts, new=new)

    def go_on(self, steps: int) -> dict[str, Any]:
        """Run until each row has `steps` more tokens."""
        return self._ask(do="go_on", steps=steps)

    def end(self) -> list[list[int]]:
        """Return all new tokens by row."""
        rows: list[list[int]] = self._ask(do="end")["ids"]
        return rows

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Run:
        """Run an entire batch and check its results."""
        first = self.start(prompts, new)
        rest = self.go_on(new - 1)
        check(self.end(), len(prompts), new)
        decoded = rest["tokens"] - first["tokens"]
        return Run(len(prompts), len(prompts[0]), first["seconds"], rest["seconds"], decoded, rest["cpu"])

    def _ask(self, **command: object) -> dict[str, Any]:
        assert self._child.stdin and self._child.stdout  # noqa: S101
        try:
            self._child.stdin.write(json.dumps(command) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # its exit is detected below
        if not select([self._child.stdout], [], [], self._limit_s)[0]:
            self._child.kill()
            raise EngineError(f"{self.name}: no answer to {command['do']} after {self._limit_s:.0f} s")
        line = self._child.stdout.readline()
        if not line:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise EngineError(
                f"{self.name} ended with status {self._child.wait()} on {command['do']}: {lines[-1] if lines else ''}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def check(rows: Sequence[Sequence[int]], count: int, length: int) -> None:
    """Check that there are `count` rows of `length` tokens. Raises EngineError."""
    if len(rows) != count:
        raise EngineError(f"{len(rows)} rows came back of {count}")
    for number, row in enumerate(rows):
        if len(row) != length:
            raise EngineError(f"row {number} has {len(row)} tokens; {length} were asked for")
