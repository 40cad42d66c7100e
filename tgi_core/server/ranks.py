"""Several ranks behind one session: rank 0 tells the others each verb, with its number, before it carries it out itself.

The others hold a session and nothing else: no tokenizer, no grammar. What fails on all ranks alike is an ordinary error. A rank that
fails alone, or dies, ends the whole group: its part of the model is gone.

    rank 0 → others   [number, verb, arguments]      others → rank 0   [number, "failed", kind, message]
                      [number, "agreed", []]                           [number, "done", value]
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tgi_core.backend import (
    BackendBug,
    BackendError,
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Grant,
    Group,
    Handle,
    PeerLost,
    Progress,
    Request,
    Rows,
    Stats,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.session import Session
from tgi_core.errors import StartupError
from tgi_core.server.rank_link import Link
from tgi_core.server.rank_messages import decode_arguments, plain
from tgi_core.server.rank_peers import AGREE_S, Peers

T = TypeVar("T")

_GOODBYE_S = 3.0
"""How long the others get to end by themselves; they have nothing to lose."""

_OPENED_S = 120.0
"""How long the last ranks may take to open after the first; they meet while they do."""


class Leader:
    """Rank 0's session over those of all ranks; it answers with its own results."""

    def __init__(self, own: Session, peers: Peers) -> None:
        self._own, self._peers = own, peers

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Its own; all ranks' are alike."""
        return self._own.capabilities()

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm all ranks up. Raises BackendBug where they promise different limits."""
        number = self._peers.broadcast("warmup", plan)
        capacity = self._carried_out(number, lambda: self._own.warmup(plan, progress))
        mine = plain(replace(capacity, memory=()))
        for rank, report in self._peers.collect(number, _OPENED_S).items():
            if report[1:] != ["done", mine]:
                self._peers.lose(f"rank {rank} promises {report[2:]}, rank 0 {mine}")
        return capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start requests on all ranks."""
        number = self._peers.broadcast("prefill", batch, cached, grants)
        return self._carried_out(number, lambda: self._own.prefill(batch, cached, grants))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Go on with batches on all ranks."""
        number = self._peers.broadcast("decode", batches, grants)
        return self._carried_out(number, lambda: self._own.decode(batches, grants))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Wait for a step."""
        number = self._peers.broadcast("rows", step)
        return self._carried_out(number, lambda: self._own.rows(step))

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep some rows on all ranks."""
        number = self._peers.broadcast("filter", batch, keep)
        return self._carried_out(number, lambda: self._own.filter(batch, keep))

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop rows on all ranks."""
        number = self._peers.broadcast("clear", batch)
        return self._carried_out(number, lambda: self._own.clear(batch))

    @hookimpl
    def stats(self) -> Stats:
        """Its own."""
        return self._own.stats()

    @hookimpl
    def close(self) -> Closed:
        """End all ranks' sessions, and the processes that rank 0 has started. Idempotent."""
        self._peers.close(_GOODBYE_S)
        return self._own.close()

    def _carried_out(self, number: int, verb: Callable[[], T]) -> T:
        try:
            result = verb()
        except BackendError as error:
            self._peers.settle(number, error)
            raise
        finally:
            self._peers.busy = 0
        if wrong := self._peers.trouble():
            self._peers.lose(wrong)
        return result


def lead(peers: Peers, name: str, open_own: Callable[[Group], object]) -> Leader:
    """Open the session of all ranks. Raises StartupError, BackendError, as opening a single one does; PeerLost."""
    try:
        peers.place()
        own = Session(_opened_beside(peers, lambda: open_own(peers.group)), name)
        mine = plain(own.capabilities())
        for rank, report in peers.collect(0, _OPENED_S).items():
            if report[1:] != ["done", mine]:
                raise BackendBug(f"backend {name}: rank {rank} says {report[1:]} of itself, rank 0 {mine}")
    except BaseException:
        peers.close(0)
        raise
    return Leader(own, peers)


def _opened_beside(peers: Peers, open_own: Callable[[], object]) -> object:
    """What `open_own` returns; it waits for the others, so it runs beside us, and is given up when one of them is gone."""
    done: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((open_own(), None))
        except BaseException as error:  # noqa: BLE001  raised below
            done.put((None, error))

    threading.Thread(target=run, name="opening", daemon=True).start()
    end: float | None = None
    while True:
        try:
            opened, error = done.get(timeout=0.1)
            break
        except queue.Empty:
            if peers.trouble() and end is None:  # the same mistake may end us too
                end = time.monotonic() + AGREE_S
            if end is not None and time.monotonic() > end:
                raise StartupError(peers.trouble()) from None
    if error is None:
        return opened
    if isinstance(error.__cause__, PeerLost) and (reason := peers.trouble(2.0)):
        raise StartupError(reason) from error
    raise error


def follow(link: Link, open_session: Callable[[Group], Session]) -> None:
    """Carry out what rank 0 says until it says goodbye. Raises StartupError when this rank fails alone."""
    number, _, place = link.receive()
    group = Group(*place)
    try:
        session = open_session(group)
        link.send([0, "done", session.capabilities()])
    except (BackendError, StartupError) as error:
        link.send([0, "failed", type(error).__name__, str(error)])
        link.receive(_OPENED_S)  # rank 0 ends the connection; it has an error of its own to tell
        raise
    link.end_with_it(AGREE_S)
    while True:
        last, (number, verb, arguments) = number, link.receive()
        if verb == "close":
            session.close()
            return
        if number != last + 1:
            raise StartupError(f"rank {group.rank}: verb {number} follows verb {last}")
        try:
            _carry_out(link, session, number, verb, arguments)
        except BackendError as error:
            number = _agreed(link, group, number, error)


def _carry_out(link: Link, session: Session, number: int, verb: str, arguments: Any) -> None:
    decoded = decode_arguments(verb, arguments)
    if verb == "warmup":
        capacity = session.warmup(decoded[0], lambda what, done, total, unit: None)
        link.send([number, "done", replace(capacity, memory=())])
    else:
        getattr(session, verb)(*decoded)


def _agreed(link: Link, group: Group, number: int, error: BackendError) -> int:
    """The number of the message that says that all ranks failed alike. Raises StartupError if this one failed alone."""
    link.send([number, "failed", type(error).__name__, str(error)])
    try:
        following, verb, _ = link.receive(AGREE_S)
    except TimeoutError:
        verb = following = None
    if verb != "agreed":
        raise StartupError(f"rank {group.rank} failed alone with {type(error).__name__}: {error}") from error
    return int(following)
