"""The other ranks, as rank 0 sees them: what it tells them, what they report, and how the group ends when one is gone."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from tgi_core.backend import BackendError, Group, PeerLost
from tgi_core.run_folder import end_at_once
from tgi_core.server.rank_link import Link, LinkClosed
from tgi_core.server.rank_messages import plain

_log = logging.getLogger(__name__)

AGREE_S = 10.0
"""How long a rank that failed waits for the others to say the same."""

_STUCK_S = 30.0
"""How long rank 0 may go on with a verb after another rank is gone."""


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

    def broadcast(self, verb: str, *arguments: Any) -> int:
        """Send a verb to all; its number. Raises PeerLost."""
        if wrong := self.trouble():
            self.lose(wrong)
        self._number += 1
        self.busy = self._number
        try:
            for peer in self._peers.values():
                self._send(peer, [self._number, verb, arguments])
        except BaseException:
            self.busy = 0  # nobody has begun it, so nobody can hang in it
            raise
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
        self.broadcast("agreed")

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
            end_at_once(1)
