"""One replica: its loop, its lifecycle, and the account of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.replicas.holders import SharedPrefixIndex
from tgi_core.replicas.placement import Charge, Choice, Placement
from tgi_core.scheduler import SchedulerLoop
from tgi_core.scheduler.events import ReplicaState
from tgi_core.scheduler.overload import QueueLimits
from tgi_core.scheduler.sequence import Sequence

Keys = tuple[bytes, list[bytes]]
"""Root key of a request, and the keys of its full blocks."""


PARKED = "parked"
"""Phase of a replica without a shard on purpose."""


class ReplicaLifecycle(Lifecycle):
    """The lifecycle of one replica; `changed` is called after each change of its phase."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(Phase.SERVING)
        self._changed = changed
        self.losses = 0
        self.parked = False
        """Whether no shard is wanted."""
        self.resting = False
        """Whether there is no shard on purpose: it is parked, or being opened after that."""

    def serving(self) -> None:
        """The shard is ready again."""
        super().serving()
        self.resting = self.parked
        self._changed()

    def restarting(self, reason: str, *, queueing: bool = False) -> None:
        """The shard is lost and is being replaced."""
        self.losses += self.shard is Phase.SERVING and not self.parked
        super().restarting(reason, queueing=queueing)
        self._changed()

    def failed(self, reason: str) -> None:
        """The shard is permanently lost."""
        super().failed(reason)
        self._changed()


class Replica:
    """A `Replication` of one scheduler loop, which `attach` sets. It calls with itself `lost_shard` when its shard is lost, `changed` when
    it serves again or not, and `relieved` when a request has started or ended."""

    def __init__(
        self,
        number: int,
        placement: Placement,
        prefixes: SharedPrefixIndex,
        queue_limits: QueueLimits,
        lost_shard: Callable[[Replica], None],
        changed: Callable[[Replica], None],
        relieved: Callable[[Replica], None],
    ) -> None:
        self.number = number
        self.prefixes, self.queue_limits = prefixes, queue_limits
        self.lifecycle = ReplicaLifecycle(lambda: changed(self))
        self.loop: SchedulerLoop
        self.up = asyncio.Event()
        """Set while the replica serves."""
        self.up.set()
        self.wanted = asyncio.Event()
        """Set unless the replica is parked."""
        self.wanted.set()
        self.waiting: dict[int, Sequence] = {}
        """Requests whose first step here has not been sent, in order of arrival."""
        self.placed = self.moved = 0
        self._placement = placement
        self._lost_shard, self._relieved = lost_shard, relieved
        self._charges: dict[int, Charge] = {}
        self._sequences: dict[int, Sequence] = {}
        self._expected: tuple[Choice, Keys] | None = None

    @property
    def bit(self) -> int:
        """The replica as a bit."""
        return 1 << self.number

    @property
    def serves(self) -> bool:
        """Whether the replica serves."""
        return self.lifecycle.shard is Phase.SERVING

    @property
    def parked(self) -> bool:
        """Whether it is without a shard until `unpark`."""
        return self.lifecycle.parked

    @property
    def longest_wait(self) -> float | None:
        """Seconds that a request has waited here for its first step; None if none does."""
        since = (self.loop.waiting_since(key) for key in self.waiting)
        first = min((at for at in since if at is not None), default=None)
        return None if first is None else asyncio.get_running_loop().time() - first

    def park(self, reason: str) -> None:
        """Close the shard after its step. Its requests continue on other replicas."""
        self.lifecycle.parked = self.lifecycle.resting = True
        self.wanted.clear()
        self.loop.replace_shard(reason)

    def unpark(self) -> None:
        """Open a shard again."""
        self.lifecycle.parked = False
        self.wanted.set()

    def state(self) -> ReplicaState:
        """Return its state."""
        phase, load = self.lifecycle.shard.value, self.loop.snapshot()
        if self.parked and not self.serves:
            phase, load = PARKED, replace(load, blocks_free=0, blocks_total=0)
        return ReplicaState(phase, load, self.placed, self.moved, self.lifecycle.losses)

    def attach(self, loop: SchedulerLoop) -> None:
        """Set the loop, once."""
        self.loop = loop

    @contextmanager
    def expecting(self, choice: Choice, keys: Keys) -> Iterator[None]:
        """Announce the request that is queued in this block."""
        self._expected = choice, keys
        try:
            yield
        finally:
            self._expected = None

    def charge(self, key: int) -> Charge:
        """Return the account of a request."""
        return self._charges[key]

    # as a `Replication`

    def queued(self, sequence: Sequence) -> None:
        """Charge the replica for a request."""
        choice = Choice(self.number, 0)
        if self._expected is not None:
            choice, (sequence.root, sequence.keys) = self._expected
        answer = sequence.total - len(sequence.tokens)
        self._charges[sequence.key] = self._placement.place(choice, len(sequence.tokens), answer)
        self._sequences[sequence.key] = self.waiting[sequence.key] = sequence
        self.placed += 1

    def started(self, key: int) -> None:
        """Its first step is being sent."""
        charge = self._charges.get(key)
        if charge is not None and self.waiting.pop(key, None) is not None:
            self._placement.started(charge)
            self._relieved(self)

    def ended(self, key: int) -> None:
        """It has ended here."""
        charge, sequence = self._charges.pop(key, None), self._sequences.pop(key, None)
        self.waiting.pop(key, None)
        if charge is not None and sequence is not None:
            self._placement.ended(charge, len(sequence.tokens) - len(sequence.request.input_ids))
            self._relieved(self)

    def lost(self) -> None:
        """All requests wait again."""
        self._lost_shard(self)
