"""Rank 0's view of the other ranks: the verbs sent to them, their reports, and the end of the group when a rank is lost."""

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
"""Seconds that a failed rank waits for the others to report the same failure."""

_TOLD_S = 2.0
"""Seconds in which the connection of a lost rank closes, after a collective operation has noticed it: it says which one it was."""

_STUCK_S = 30.0
"""Seconds that rank 0 may continue with a verb after another rank is lost."""


class Process(Protocol):
    """A rank's process, if rank 0 has started it."""

    def kill(self) -> None:
        """Kill the process. Idempotent."""

    def outcome(self, seconds: float) -> str | None:
        """Return how the process ended ("was killed by SIGKILL"); None if it is still alive after `seconds`."""


class Peer:
    """Another rank. A thread collects its reports; None in `reports` means that the rank is lost."""

    def __init__(self, rank: int, link: Link, process: Process | None = None) -> None:
        self.rank, self.link, self.process = rank, link, process
        self.reports: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self.failure = ""
        """Last error that the rank reported."""

    def reason(self) -> str:
        """Return why the rank is lost."""
        ended = self.process.outcome(1.0) if self.process is not None else None
        return self.failure or f"rank {self.rank} {ended or 'is gone'}"

    def end(self) -> None:
        """Close the link, and kill the process if rank 0 has started it."""
        self.link.close()
        if self.process is not None:
            self.process.kill()


class Peers:
    """All other ranks. `lost` is called once, from a thread, when one of them is lost before `close`."""

    def __init__(self, peers: Mapping[int, Peer], group: Group, lost: Callable[[], None] | None = None) -> None:
        self.group = group
        self._peers, self._tell_lost = peers, lost
        self._number = 0
        self._lock = threading.Lock()
        self._ended, self._over = False, threading.Event()
        self.busy = 0
        """Number of the verb that rank 0 is executing; 0 between verbs."""
        self.lost = ""
        """Why the group has ended; empty while it is alive."""
        for peer in peers.values():
            threading.Thread(target=self._collect, args=(peer,), name=f"rank {peer.rank}", daemon=True).start()

    def place(self) -> None:
        """Send each rank its place in the group."""
        for peer in self._peers.values():
            # local ranks on rank 0's machine count from rank 0; ranks on other machines know their own
            local_rank = self.group.local_rank + peer.rank
            self._send(peer, [0, "open", plain(replace(self.group, rank=peer.rank, local_rank=local_rank))])

    def broadcast(self, verb: str, *arguments: Any) -> int:
        """Send a verb to all ranks. Return its number. Raises PeerLost."""
        if wrong := self.trouble():
            self.lose(wrong)
        self._number += 1
        self.busy = self._number
        try:
            for peer in self._peers.values():
                self._send(peer, [self._number, verb, arguments])
        except BaseException:
            self.busy = 0  # rank 0 has not begun it, so it cannot hang in it
            raise
        return self._number

    def trouble(self, seconds: float = 0.0) -> str:
        """Return the failure of another rank that is known within `seconds`; empty if there is none."""
        self._over.wait(seconds)
        return self.lost or next((peer.failure for peer in self._peers.values() if peer.failure), "")

    def collect(self, number: int, seconds: float) -> dict[int, list[Any]]:
        """Return the reports of all ranks on a verb, by rank. Raises PeerLost if a rank is lost or does not report in time."""
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
        """After a failure of rank 0, continue if all ranks failed alike. Raises PeerLost if they did not."""
        if isinstance(error, PeerLost):
            gone = next((peer for peer in self._peers.values() if peer.process and peer.process.outcome(0.2)), None)
            self.lose(gone.reason() if gone is not None else self.trouble(_TOLD_S) or str(error))
        for rank, report in self.collect(number, AGREE_S).items():
            if report[1:3] != ["failed", type(error).__name__]:
                self.lose(f"rank 0 failed with {type(error).__name__}: {error}; rank {rank} did not")
        for peer in self._peers.values():
            peer.failure = ""
        self.broadcast("agreed")

    def lose(self, reason: str) -> NoReturn:
        """End the group. Raises PeerLost."""
        self._note(reason)
        raise PeerLost(self.lost)

    def close(self, seconds: float) -> None:
        """Ask all ranks to close; after `seconds`, close their links and kill the processes that rank 0 has started. Idempotent."""
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
                    if report[0] not in (0, self.busy):  # rank 0 has completed that verb successfully
                        self._note(peer.failure)
                peer.reports.put(report)
        except (LinkClosed, TypeError, IndexError):
            peer.reports.put(None)
            self._note(None, peer)

    def _note(self, reason: str | None, peer: Peer | None = None) -> None:
        """Record a loss and end all ranks; only the first one counts."""
        if self._ended:
            return
        said = reason or (peer.reason() if peer is not None else "")
        with self._lock:
            if self._ended:
                return
            self._ended, self.lost = True, said
        _log.error("%s: ending the group of %d ranks", said, self.group.world)
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
        """End this process if it still executes the verb: a device that waits for a lost rank may wait forever."""
        if self.busy == number:
            _log.error("rank 0 is still waiting for a lost rank; ending its process")
            end_at_once(1)
