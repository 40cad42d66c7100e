"""Sessions over a late device, and a driver that is one step ahead of what it has read."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.tiny_models import silent
from tgi_core.backend import EMPTY, Capacity, Grant, Handle, OpenOptions, Request, Row, Rows, Step, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.open_model import open_session

PLAN = WarmupPlan(max_rows=8, max_row_tokens=96, max_step_tokens=128, num_blocks=64)


def open_on(queue: LateQueue | None, model: Path, plan: WarmupPlan = PLAN, **options: Any) -> tuple[Session, Capacity]:
    """A warmed session in float32 over a queue, or in lock step without one."""
    session = Session(open_session(OpenOptions(str(model), dtype="float32", **options), LateKit(queue), silent), "late")
    return session, session.warmup(plan, silent)


class Ahead:
    """Launches a step before it reads the one before."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.handle: Handle = EMPTY
        self.unread: deque[Step] = deque()
        self.rows: list[Rows] = []
        self.next_block = 1

    def request(self, id: int, prompt: tuple[int, ...], new: int = 16, **fields: Any) -> Request:
        """A request with blocks of 16 tokens for its whole life, which nobody else has."""
        count = -(-(len(prompt) + new) // 16)
        blocks = tuple(range(self.next_block, self.next_block + count))
        self.next_block += count
        return Request(id, prompt, len(prompt), 0, (blocks,), len(prompt), **fields)

    def launch(self, *requests: Request, grants: tuple[Grant, ...] = ()) -> Step:
        """The next step; the one before the last is read first."""
        while len(self.unread) > 1:
            self.read()
        step = self.session.prefill(requests, self.handle, grants) if requests else self.session.decode((self.handle,), grants)
        self.handle = step.handle
        self.unread.append(step)
        return step

    def read(self) -> Rows:
        """The oldest step that nobody has read."""
        self.rows.append(self.session.rows(self.unread.popleft()))
        return self.rows[-1]

    def finish(self) -> None:
        """Read what is left."""
        while self.unread:
            self.read()

    def of(self, id: int) -> list[Row]:
        """What one request got, step by step."""
        return [row for rows in self.rows for row in rows.rows if row.request_id == id]

    def tokens(self, id: int) -> list[int]:
        """Its tokens."""
        return [token for row in self.of(id) for token in row.tokens]
