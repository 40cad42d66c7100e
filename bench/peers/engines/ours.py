"""This project's CPU backend, driven through its session like in the server's shard."""

from __future__ import annotations

import os
from importlib.metadata import version

from tgi_backend_cpu import plugin
from tgi_backend_cpu.choosing import INT8_ROWS

from bench.peers.engines.protocol import About, Plan, serve
from tgi_core.backend import EMPTY, Grant, OpenOptions, Request, Step, WarmupPlan
from tgi_core.backend.session import Session

PRECISIONS = {
    ("", False): "bfloat16",
    ("int8", False): "bfloat16, weights int8 (8 bits per weight)",
    ("int8", True): "int8 (8 bits per weight), rows of 8 bits",
    ("int4", False): "bfloat16, weights int4 (4.75 bits per weight; head int8)",
    ("int4", True): "int4 (4.75 bits per weight; head int8), rows of 8 bits",
    ("fp8", False): "bfloat16, weights e4m3 (8 bits per weight)",
    ("fp8", True): "bfloat16, weights e4m3 (8 bits per weight)",
}
"""By weights, and whether rows are rounded to eight bits. Four bits have a scale of 16 bits and a zero point of 8 for 32 weights."""


class Ours:
    """Prefills as many prompts per step as fit, then decodes all rows together."""

    def __init__(self, plan: Plan, draft: int = 0) -> None:
        """`draft` as in WarmupPlan."""
        opened = plugin.backend_open(OpenOptions(str(plan.model), "bfloat16", quantize=plan.weights), _silent)
        self._precision = PRECISIONS[plan.weights, plan.weights != "" and os.environ.get(INT8_ROWS) == "1"]
        self.runner = opened.runner
        self.session = Session(opened, "cpu")
        warmup = WarmupPlan(plan.rows, plan.row_tokens, plan.step_tokens, draft=draft, window_blocks=0)
        self.capacity = self.session.warmup(warmup, _silent)
        self._next_id = 1
        self.tokens: dict[int, list[int]] = {}
        """Tokens made so far, by request."""
        self._steps: list[Step] = []

    def about(self) -> About:
        """Describe the engine; the kernels chosen at startup are its settings."""
        kernels = {kernel.part: f"{kernel.name}: {kernel.reason}" for kernel in self.session.capabilities().kernels}
        return About(version("tgi-core"), self._precision, "bfloat16", kernels)

    def start(self, prompts: list[list[int]], new: int) -> int:
        """Prefill."""
        block_size, free = self.capacity.groups[0].block_size, 1
        requests: list[Request] = []
        for prompt in prompts:
            count = -(-(len(prompt) + new) // block_size)
            blocks = tuple(range(free, free + count))
            free += count
            requests.append(Request(self._next_id, tuple(prompt), len(prompt), 0, (blocks,), len(prompt)))
            self._next_id += 1
        self.tokens = {request.id: [] for request in requests}
        at_once = max(1, self.capacity.max_step_tokens // max(len(prompt) for prompt in prompts))
        for first in range(0, len(requests), at_once):
            self._steps.append(self.session.prefill(tuple(requests[first : first + at_once]), EMPTY, ()))
            self._read(self._steps[-1])
        return self._made()

    def go_on(self, steps: int) -> int:
        """Decode."""
        for _ in range(steps):
            self.step()
        return self._made()

    def step(self, grants: tuple[Grant, ...] = ()) -> None:
        """Decode once."""
        self._steps = [self.session.decode(tuple(step.handle for step in self._steps), grants)]
        self._read(self._steps[0])

    def end(self) -> list[list[int]]:
        """Clear the batch."""
        for step in self._steps:
            self.session.clear(step.handle)
        self._steps = []
        return list(self.tokens.values())

    def _read(self, step: Step) -> None:
        for row in self.session.rows(step).rows:
            self.tokens[row.request_id] += row.tokens

    def _made(self) -> int:
        return sum(len(tokens) for tokens in self.tokens.values())


def _silent(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""


if __name__ == "__main__":
    plugin.set_up_openmp()  # as the shard does, before importing torch
    serve(Ours)
