"""Several ranks behind one session: rank 0 tells the others each verb, with its number, before it carries it out itself.

The others hold a session and nothing else: no tokenizer, no grammar. What fails on all ranks alike is an ordinary error. A rank that
fails alone, or dies, ends the whole group: its part of the model is gone.

    rank 0 → others   [number, verb, arguments]      others → rank 0   [number, "failed", kind, message]
                      [number, "agreed", []]                           [number, "done", value]
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, Protocol, TypeVar

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
from tgi_core.server.rank_link import Link, LinkClosed
from tgi_core.server.rank_messages import decode_arguments, plain

T = TypeVar("T")

_log = logging.getLogger(__name__)

AGREE_S = 10.0
"""How long a rank that failed waits for the others to say the same."""

_GOODBYE_S = 3.0
"""How long the others get to end by themselves; they have nothing to lose."""

_STUCK_S = 30.0
"""How long rank 0 may go on with a verb after another rank is gone."""

_OPENED_S = 120.0
"""How long the last ranks may take to open after the first; they meet while they do."""


class Process(Protocol):
    """A rank's process, where rank 0 has started it."""

    def kill(self) -> None:
        """End it at once. Idempotent."""

    def outcome(self, seconds: float) -> str | None:
        """How it has ended ("was killed by SIGKILL"); None if it lives on after that time."""


class Peer:
    """Another rank, as rank 0 sees it. A thread collects what it reports; None in `reports` means that it is gone."""

    def __init__(self, rank: int, link: Link, process: Process | None = None) -> None:
        self.rank, self.link, self.process = rank, link, process
        self.reports: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self.failure = ""
        """What it said last of an error of its own."""

    def reason(self) -> str:
        """Why it is gone."""
        ended = self.process.outcome(1.0) if self.process is not None else None
        return self.failure or f"rank {self.rank} {ended or 'is gone'}"

    def end(self) -> None:
        """Let go of it; a process of ours is killed."""
        self.link.close()
        if self.process is not None:
            self.process.kill()


class Peers:
    """All other ranks. `lost` is called once, from a thread, when one of them is gone before its time."""

    def __init__(self, peers: Mapping[int, Peer], group: Group, lost: Callable[[], None] | None = None) -> None:
        self.group = group
        self._peers, self._tell_lost = peers, lost
        self._number = 0
        self._lock = threading.Lock()
        self._ended, self._over = False, threading.Event()
        self.busy = 0
        """The number of the verb that rank 0 is carrying out; 0 between verbs."""
        self.lost = ""
        """Why the group is over; empty while all is well."""
        for peer in peers.values():
            threading.Thread(target=self._collect, args=(peer,), name=f"rank {peer.rank}", daemon=True).start()

    def place(self) -> None:
        """Tell each rank its place."""
        for peer in self._peers.values():
            # Ranks of one machine count from rank 0's; those of others know their own.
            self._send(peer, [0, "open", plain(replace(self.group, rank=peer.rank, local_rank=peer.rank))])

    def tell(self, verb: str, *arguments: Any) -> int:
        """Send a verb to all; its number. Raises PeerLost."""
        if wrong := self.trouble():
            self.lose(wrong)
        self._number += 1
        self.busy = self._number
        for peer in self._peers.values():
            self._send(peer, [self._number, verb, arguments])
        return self._number

    def trouble(self, seconds: float = 0.0) -> str:
        """What is wrong with another rank, as far as is known after that time; empty if nothing is."""
        self._over.wait(seconds)
        return self.lost or next((peer.failure for peer in self._peers.values() if peer.failure), "")

    def collect(self, number: int, seconds: float) -> dict[int, list[Any]]:
        """What every rank reports of a verb, by rank. Raises PeerLost where one is gone, or says nothing in time."""
        end, found = time.monotonic() + seconds, {}
        for peer in self._peers.values():
            try:
                report = peer.reports.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.lose(f"rank {peer.rank} has not said within {seconds:.0f} s how verb {number} went")
            if report is None:
                self.lose(peer.reason())
            if report[0] != number:
                self.lose(peer.failure or f"rank {peer.rank} is at verb {report[0]}, rank 0 at {number}")
            found[peer.rank] = report
        return found

    def settle(self, number: int, error: BackendError) -> None:
        """Rank 0 failed: go on if all ranks failed alike. Raises PeerLost if they did not."""
        if isinstance(error, PeerLost):
            gone = next((peer for peer in self._peers.values() if peer.process and peer.process.outcome(0.2)), None)
            self.lose(gone.reason() if gone is not None else self.lost or str(error))
        for rank, report in self.collect(number, AGREE_S).items():
            if report[1:3] != ["failed", type(error).__name__]:
                self.lose(f"rank 0 failed with {type(error).__name__}: {error}; rank {rank} did not")
        for peer in self._peers.values():
            peer.failure = ""
        self.tell("agreed")

    def lose(self, reason: str) -> NoReturn:
        """The group is over. Raises PeerLost."""
        self._note(reason)
        raise PeerLost(self.lost)

    def close(self, seconds: float) -> None:
        """Say goodbye, then insist. Idempotent."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            for peer in self._peers.values():
                try:
                    peer.link.send([self._number + 1, "close", []])
                except LinkClosed:
                    continue
            end = time.monotonic() + seconds
            for peer in self._peers.values():
                if peer.process is not None:
                    peer.process.outcome(max(0.0, end - time.monotonic()))
        for peer in self._peers.values():
            peer.end()

    def _send(self, peer: Peer, message: Any) -> None:
        try:
            peer.link.send(message)
        except LinkClosed:
            self.lose(peer.reason())

    def _collect(self, peer: Peer) -> None:
        try:
            while True:
                report = peer.link.receive()
                if report[1] == "failed":
                    peer.failure = f"rank {peer.rank} failed with {report[2]}: {report[3]}"
                    if report[0] not in (0, self.busy):  # rank 0 has done that verb, and well
                        self._note(peer.failure)
                peer.reports.put(report)
        except (LinkClosed, TypeError, IndexError):
            peer.reports.put(None)
            self._note(None, peer)

    def _note(self, reason: str | None, peer: Peer | None = None) -> None:
        """The first loss counts: all ranks end with it."""
        if self._ended:
            return
        said = reason or (peer.reason() if peer is not None else "")
        with self._lock:
            if self._ended:
                return
            self._ended, self.lost = True, said
        _log.error("%s: the group of %d ranks ends", said, self.group.world)
        self._over.set()
        for other in self._peers.values():
            other.end()
        if self.busy:
            stuck = threading.Timer(_STUCK_S, self._end_if_stuck, (self.busy,))
            stuck.daemon = True
            stuck.start()
        if self._tell_lost is not None:
            self._tell_lost()

    def _end_if_stuck(self, number: int) -> None:
        """A device that waits for a rank that is gone may wait for ever; only the end of its process cures it."""
        if self.busy == number:
            _log.error("rank 0 still waits for a rank that is gone; its process ends")
            os._exit(1)


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
        number = self._peers.tell("warmup", plan)
        capacity = self._carried_out(number, lambda: self._own.warmup(plan, progress))
        mine = plain(replace(capacity, memory=()))
        for rank, report in self._peers.collect(number, _OPENED_S).items():
            if report[1:] != ["done", mine]:
                self._peers.lose(f"rank {rank} promises {report[2:]}, rank 0 {mine}")
        return capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start requests on all ranks."""
        number = self._peers.tell("prefill", batch, cached, grants)
        return self._carried_out(number, lambda: self._own.prefill(batch, cached, grants))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Go on with batches on all ranks."""
        number = self._peers.tell("decode", batches, grants)
        return self._carried_out(number, lambda: self._own.decode(batches, grants))

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Wait for a step."""
        number = self._peers.tell("rows", step)
        return self._carried_out(number, lambda: self._own.rows(step))

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep some rows on all ranks."""
        number = self._peers.tell("filter", batch, keep)
        return self._carried_out(number, lambda: self._own.filter(batch, keep))

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Drop rows on all ranks."""
        number = self._peers.tell("clear", batch)
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
