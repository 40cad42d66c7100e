"""Several ranks behind one session: rank 0 sends each verb, with its number, to the others before executing it itself.

The other ranks have only a session: no tokenizer, no grammars. A failure on all ranks alike is an ordinary error. If a rank fails
alone, or dies, the whole group exits, since a part of the model is lost.

    rank 0 → others   [number, verb, arguments]      others → rank 0   [number, "failed", kind, message]
                      [number, "agreed", []]                           [number, "done", value]
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
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
"""Seconds until ranks that have not exited are killed. Short, since they have no state to save."""

_OPENED_S = 120.0
"""Seconds that other ranks may take longer than rank 0 to open or warm up, which all ranks do together."""


class Leader:
    """Rank 0's session, which drives the sessions of all ranks and returns its own results."""

    def __init__(self, own: Session, peers: Peers) -> None:
        self._own, self._peers = own, peers

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Return rank 0's capabilities; those of all ranks are equal, except for the reasons of their kernels."""
        return self._own.capabilities()

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up all ranks. Raises PeerLost if their capacities differ."""
        number = self._peers.broadcast("warmup", plan)
        capacity = self._carried_out(number, lambda: self._own.warmup(plan, progress))
        mine = plain(replace(capacity, memory=()))
        for rank, report in self._peers.collect(number, _OPENED_S).items():
            if report[1:] != ["done", mine]:
                self._peers.lose(f"rank {rank} promises {report[2:]}, rank 0 {mine}")
        return capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Prefill requests on all ranks."""
        number = self._peers.broadcast("prefill", batch, cached, grants)
        return self._carried_out(number, lambda: self._own.prefill(batch, cached, grants))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Decode batches on all ranks."""
        number = self._peers.broadcast("decode", batches, grants)
        return self._carried_out(number, lambda: self._own.decode(batches, grants))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Wait for a step and return rank 0's rows."""
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
        """Return rank 0's stats."""
        return self._own.stats()

    @hookimpl
    def close(self) -> Closed:
        """Close the sessions of all ranks, and end the processes that rank 0 has started. Idempotent."""
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
    """Open the session of all ranks. Raises StartupError and BackendError, as opening a single session does; PeerLost."""
    with ExitStack() as undo:
        undo.callback(peers.close, 0)
        peers.place()
        own = Session(_opened_beside(peers, lambda: open_own(peers.group)), name)
        undo.callback(own.close)
        mine = plain(_compared(own.capabilities()))
        for rank, report in peers.collect(0, _OPENED_S).items():
            if report[1:] != ["done", mine]:
                raise BackendBug(f"backend {name}: rank {rank} says {report[1:]} of itself, rank 0 {mine}")
        undo.pop_all()
    return Leader(own, peers)


def _compared(capabilities: Capabilities) -> Capabilities:
    """Return what must be equal on all ranks: not why a kernel was chosen, since one rank may have built what the others found."""
    return replace(capabilities, kernels=tuple(replace(kernel, reason="") for kernel in capabilities.kernels))


def _opened_beside(peers: Peers, open_own: Callable[[], object]) -> object:
    """Run `open_own` and return its result. It waits for the other ranks, so it runs in a thread that is abandoned if one is
    lost."""
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
            if peers.trouble() and end is None:  # rank 0 may be about to fail in the same way
                end = time.monotonic() + AGREE_S
            if end is not None and time.monotonic() > end:
                raise StartupError(peers.trouble()) from None
    if error is None:
        return opened
    if isinstance(error.__cause__, PeerLost) and (reason := peers.trouble(2.0)):
        raise StartupError(reason) from error
    raise error


def follow(link: Link, open_session: Callable[[Group], Session], say_lost: Callable[[], None] = lambda: None) -> None:
    """Execute the verbs of rank 0 until it closes. Raises StartupError if this rank fails alone, LinkClosed if rank 0 is gone. If this
    rank waits for rank 0 on the device then, the process ends soon after, and `say_lost` is called before."""
    number, _, place = link.receive()
    group = Group(*place)
    link.end_with_it(AGREE_S, say_lost)
    try:
        session = open_session(group)
        link.send([0, "done", _compared(session.capabilities())])
    except (BackendError, StartupError) as error:
        link.send([0, "failed", type(error).__name__, str(error)])
        link.receive(_OPENED_S)  # wait until rank 0 closes the connection: it reports the error
        raise
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
    """Wait for rank 0's confirmation that all ranks failed alike; return its message number. Raises StartupError if this rank
    failed alone."""
    link.send([number, "failed", type(error).__name__, str(error)])
    try:
        following, verb, _ = link.receive(AGREE_S)
    except TimeoutError:
        verb = following = None
    if verb != "agreed":
        raise StartupError(f"rank {group.rank} failed alone with {type(error).__name__}: {error}") from error
    return int(following)
