"""Shards to poison: scheduler and model server over the reference backend or the CPU engine, and a hook that spoils one request."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from tests.scheduler.device import Device, quiet, request
from tgi_core.backend import (
    BackendError,
    OpenOptions,
    OutOfMemory,
    Request,
    Row,
    RowFault,
    RowFaultKind,
    Rows,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.scheduler import GenerationRequest, Scheduler
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

MARK = 250
"""The first token of the poisoned request, and of no other."""

PLAN = WarmupPlan(max_rows=32, max_row_tokens=64, max_step_tokens=512, num_blocks=256, block_size=16)
TIGHT = WarmupPlan(max_rows=32, max_row_tokens=64, max_step_tokens=24, num_blocks=24, block_size=4)
"""For the reference backend: so few blocks that rows are preempted."""

Spoil = Callable[[Row, int], Row]
"""From a row of the victim, and how many tokens it has got before."""


class Poison:
    """The innermost wrapper of a session: what it is told to do to the victim it does, in every step that the victim is part of."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Do nothing."""
        self.spoil: Spoil | None = None
        self.refuse: Callable[[Request], BackendError | None] | None = None
        self.refuse_rows: BackendError | None = None
        self.lose_once_at: int | None = None
        """How many tokens the victim has when its step is lost, that once."""
        self.refusals = 0
        self.victims: dict[int, int] = {}
        """Tokens by wire id."""

    @hookimpl(wrapper=True, trylast=True)
    def prefill(self, batch: tuple[Request, ...]) -> Generator[None, Any, Any]:
        """May refuse the step that brings the victim."""
        for item in batch:
            if item.tokens[0] == MARK and self.refuse is not None:
                error = self.refuse(item)
                if error is not None:
                    self.refusals += 1
                    raise error
        step = yield
        self.victims |= {item.id: len(item.tokens) - item.prompt_len for item in batch if item.tokens[0] == MARK}
        return step

    @hookimpl(wrapper=True, trylast=True)
    def rows(self, step: Step) -> Generator[None, Any, Any]:
        """May spoil the victim's row, or lose the step."""
        rows: Rows = yield
        if self.refuse_rows is not None and any(row.request_id in self.victims for row in rows.rows):
            self.refusals += 1
            raise self.refuse_rows
        made = max((self.victims.get(row.request_id, 0) for row in rows.rows), default=0)
        if self.lose_once_at is not None and made >= self.lose_once_at:
            self.lose_once_at = None
            raise OutOfMemory("full for once")
        return replace(rows, rows=tuple(map(self._row, rows.rows)))

    def _row(self, row: Row) -> Row:
        made = self.victims.get(row.request_id)
        if made is None or not row.tokens:
            return row
        self.victims[row.request_id] = made + len(row.tokens)
        return row if self.spoil is None else self.spoil(row, made)


class ServerUnderTest(Device):
    """A device whose session has a poison. `kind` is lock step, one ahead, or engine."""

    kind: str
    poison: Poison
    masks: GrammarMasks
    implementation: Any


def fault(kind: RowFaultKind) -> Spoil:
    """A row fault, at the first token."""
    return lambda row, made: Row(row.request_id, fault=RowFault(kind, "poisoned"))


def later(spoil: Spoil, tokens: int) -> Spoil:
    """The same once the victim has so many tokens."""
    return lambda row, made: spoil(row, made) if made >= tokens else row


class Servers:
    """Makes servers. The engine is opened once."""

    def __init__(self, tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
        self._tokenizer, self._compiler = tokenizer, compiler
        self._engine: tuple[Session, Any, Poison, Any, GrammarMasks] | None = None

    def open(self, kind: str, plan: WarmupPlan = PLAN, **wider: int) -> ServerUnderTest:
        """A fresh one; the scheduler believes in a capacity that is `wider` than the backend's."""
        session, implementation, poison, capacity, masks = self._opened(kind, plan)
        capabilities = session.capabilities()
        info = ShardInfo("toy", "poisoned", "none", "float32", (1, 0), capabilities)
        server = ModelServer(session, self._tokenizer, info, masks)
        instance = ServerUnderTest(Scheduler(capabilities, replace(capacity, **wider)), server, implementation)
        instance.kind, instance.poison, instance.masks, instance.implementation = kind, poison, masks, implementation
        return instance

    def _opened(self, kind: str, plan: WarmupPlan) -> tuple[Session, Any, Poison, Any, GrammarMasks]:
        if kind == "engine":
            if self._engine is None:
                self._engine = self._open(plan, lambda masks: find("cpu").open(_options(masks), quiet))
            self._engine[0].clear(None)
            self._engine[2].forget()
            return self._engine
        size = self._tokenizer.vocab_size
        return self._open(plan, lambda masks: ReferenceSession(size, 512, asynchronous=kind == "one ahead", masks=masks))

    def _open(self, plan: WarmupPlan, make: Callable[[GrammarMasks], Any]) -> tuple[Session, Any, Poison, Any, GrammarMasks]:
        masks, poison = GrammarMasks(self._compiler), Poison()
        implementation = make(masks)
        session = Session(implementation, "poisoned", wrappers=(poison,))
        return session, implementation, poison, session.warmup(plan, quiet), masks


def _options(masks: GrammarMasks) -> OpenOptions:
    return OpenOptions(str(DEMO), "float32", masks=masks)


def mates(count: int = 31) -> list[GenerationRequest]:
    """Requests of their own kinds: greedy and sampled, of many lengths."""
    return [
        request((20 + place, 7, 30 + place % 5)[: 1 + place % 3], 3 + place % 7, seed=place if place % 2 else None)
        for place in range(count)
    ]
