"""Scheduler, model server and the CPU backend in this process, driven turn by turn, with or without drafts."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from tgi_backend_cpu import plugin

from tgi_core.backend import Capabilities, Grant, Handle, MaskSource, OpenOptions, Row, Rows, Step, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.scheduler import GenerationRequest, Scheduler, SchedulerOptions
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill, ShardInfo

Answer = list[int]
_CHUNK = 8
"""Steps that each stack runs before it is the other's turn."""


class Guessing(Session):
    """A session whose rows propose what their answers are known to be, each token wrong at the rate of failures."""

    rate = 0.0

    def __init__(self, implementation: object, name: str) -> None:
        super().__init__(implementation, name)
        self._chance = random.Random(0)
        self.known: dict[int, Answer] = {}
        """By request."""
        self._made: dict[int, int] = {}
        self._draft = 0
        self._silent: set[int] = set()

    def capabilities(self) -> Capabilities:
        """See `Session`."""
        return replace(super().capabilities(), proposals=self._draft or 1)

    def guess(self, draft: int) -> None:
        """Propose so many tokens from now on."""
        self._draft = draft

    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """See `Session`."""
        self._silent = {grant.request_id for grant in grants if not grant.propose}
        return super().decode(batches, grants)

    def rows(self, step: Step) -> Rows:
        """See `Session`."""
        rows = super().rows(step)
        return replace(rows, rows=tuple(self._with_guess(row) for row in rows.rows))

    def _with_guess(self, row: Row) -> Row:
        self._made[row.request_id] = made = self._made.get(row.request_id, 0) + len(row.tokens)
        if not row.tokens or row.request_id in self._silent:
            return row
        coming = self.known.get(row.request_id, [])[made : made + self._draft]
        return replace(row, proposed=tuple(token if self._chance.random() < self.rate else (token + 1) % 256 for token in coming))


@dataclass
class Run:
    """What a stack has done for some requests: seconds on the clock and of all processors, steps, tokens, drafts."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0
    steps: int = 0
    tokens: int = 0
    drafts: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Stack:
    """A server without HTTP. With `guessing`, drafts come from known answers as well."""

    def __init__(
        self,
        model: Path,
        rows: int,
        row_tokens: int,
        draft: int,
        options: SchedulerOptions | None = None,
        *,
        guessing: bool = False,
        masks: MaskSource | None = None,
    ) -> None:
        opened = plugin.backend_open(OpenOptions(str(model), "bfloat16", masks=masks), _silent)
        tokenizer = Tokenizer.load(model)
        self.session = Guessing(opened, "cpu") if guessing else Session(opened, "cpu")
        info = ShardInfo("bench", "cpu", "none", "bfloat16", (1, 0), self.session.capabilities())
        self._server = ModelServer(self.session, tokenizer, info)
        capacity = self._server.warmup(WarmupPlan(rows, row_tokens, max(1024, rows * (1 + draft)), draft=draft), _silent)
        if isinstance(self.session, Guessing):
            self.session.guess(draft)
        self._scheduler = Scheduler(info.capabilities, capacity, options)
        self._places: dict[int, int] = {}
        self.run = Run()

    def begin(self, requests: Sequence[GenerationRequest], known: Sequence[Answer] = ()) -> None:
        """Add requests, with their answers if these are known, and run the first step, which nobody times."""
        self._places = {self._scheduler.add(request): place for place, request in enumerate(requests)}
        self.run = Run([[] for _ in requests])
        while not all(self.run.answers):
            self._turn(known)
        self.run = Run(self.run.answers)

    def go_on(self, steps: int = 1 << 30, whole: bool = True) -> bool:
        """Run so many steps; whether there is more to do. Unless `whole`, only until a row ends: then all rows were there all the time."""
        start, used, rows = time.perf_counter(), time.process_time(), len(self._scheduler.sequences)
        left = True
        for _ in range(steps):
            self._turn(())
            left = not self._scheduler.idle and (whole or len(self._scheduler.sequences) == rows)
            if not left:
                break
        self.run.seconds += time.perf_counter() - start
        self.run.cpu += time.process_time() - used
        return left

    def drop(self) -> None:
        """End what is left."""
        for key in list(self._scheduler.sequences):
            self._scheduler.cancel(key)
        while not self._scheduler.idle:
            self._turn(())

    def _turn(self, known: Sequence[Answer]) -> None:
        turn = self._scheduler.plan()
        if isinstance(self.session, Guessing) and known and isinstance(turn.launch, Prefill):
            rows = self._scheduler.shard.rows
            self.session.known |= {item.id: known[self._places[rows[item.id].key]] for item in turn.launch.requests}
        events = self._scheduler.complete(self._server.exchange(turn))
        self.run.steps += turn.launch is not None
        self.run.drafts += sum(len(grant.drafts) for grant in turn.launch.grants) if turn.launch else 0
        for event in events:
            if event.generation is None:
                raise RuntimeError(f"a request failed: {event.error}")
            made = [token.id for token in event.generation.tokens]
            self.run.answers[self._places[event.key]] += made
            self.run.tokens += len(made)


def take_turns(one: Stack, other: Stack, *, whole: bool = True) -> None:
    """Run what two stacks have begun in turns, so that noise affects both."""
    going = [one, other]
    while going:
        ended = [stack for stack in going if not stack.go_on(_CHUNK, whole)]
        going = [] if ended and not whole else [stack for stack in reversed(going) if stack not in ended]


def middle(values: Sequence[float]) -> str:
    """The median, with the least and the greatest."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _silent(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""
