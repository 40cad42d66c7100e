"""Several shards of one model as one generator for the router: places requests, and moves them when a shard is lost or has no work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from tgi_core.backend import DeviceLost
from tgi_core.client.grammars import Release
from tgi_core.grammar import Cost, Grammar
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.media.errors import MediaBusy
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.replicas.autoscaling import Autoscaler, PoolLoad, ScalingRules
from tgi_core.replicas.holders import SharedPrefixIndex
from tgi_core.replicas.placement import Choice, Placement
from tgi_core.replicas.replica import Keys, Replica
from tgi_core.scheduler import (
    GenerationFailed,
    GenerationRequest,
    GenerationStream,
    Limits,
    SchedulerOptions,
    Snapshot,
)
from tgi_core.scheduler.loop import TOKENIZE_TRIES
from tgi_core.scheduler.overload import QueueLimits
from tgi_core.scheduler.sequence import Sequence
from tgi_core.waiting import any_set
from tgi_core.wire.types import ShardInfo

_log = logging.getLogger(__name__)

_COMPARE_EVERY_S = 1.0
_MOST_LOSSES = 1
"""Lost shards in a row, without a token in between, after which a request no longer moves: it may be the cause."""


class ReplicaPool:
    """The replicas of one server, on one event loop. `lifecycle` is the server's: the server serves while any replica does. The limits of
    the queue in `options` are those of all replicas together.

    `join` adds a replica; at least one must have been attached to its loop before anything else is called.
    """

    def __init__(self, block_size: int, lifecycle: Lifecycle, options: SchedulerOptions | None = None) -> None:
        self.replicas: list[Replica] = []
        self._block_size = block_size
        self._placement = Placement(block_size)
        self._queue_limits = QueueLimits(options)
        self._lifecycle = lifecycle
        self._tokenizing: list[float] = []
        """Arrival times of the prompts with images that are being tokenized."""
        self._compared = 0.0
        self._moving = False

    def join(self) -> Replica:
        """Add a replica. Give it to its loop, then attach that loop to it."""
        number = self._placement.add(lambda: replica.loop.scheduler.memory.free)
        prefixes = SharedPrefixIndex(self._block_size, self._placement.holders, number)
        calls = self._hand_over, self._changed, self._take_from_busiest
        replica = Replica(number, self._placement, prefixes, self._queue_limits, *calls)
        self.replicas.append(replica)
        return replica

    # as the router's generator

    @property
    def info(self) -> ShardInfo:
        """The open model; all replicas have the same capabilities."""
        return self.replicas[0].loop.info

    @property
    def limits(self) -> Limits:
        """Limits of a request, which every replica can serve."""
        return Limits.least(each.loop.limits for each in self.replicas)

    @property
    def sound(self) -> bool:
        """Whether the results of any replica that serves can be trusted."""
        serving = [each for each in self.replicas if each.serves]
        return any(each.loop.sound for each in serving) or (not serving and self._resting)

    @property
    def prefix_caching(self) -> bool:
        """Whether prefix caching is enabled."""
        return self.replicas[0].loop.prefix_caching

    @property
    def speculates(self) -> bool:
        """Whether requests get drafts."""
        return self.replicas[0].loop.speculates

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Compile a grammar on every replica that serves, since it is not known yet which of them gets the request. Raises
        InvalidGrammar, GrammarsBusy."""
        asked = [each.loop.prepare(grammar, cost) for each in self.replicas if each.serves]
        results = await asyncio.gather(*asked, return_exceptions=True)
        releases = [each for each in results if not isinstance(each, BaseException)]

        def release() -> None:
            for each in releases:
                each()

        for failure in results:
            if isinstance(failure, BaseException):
                release()
                raise failure
        return release

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Tokenize a prompt with images on the replica with the least to do: the one that gets the request depends on the tokens. Waits
        for a replica if none serves. Raises ImageRejected, MediaBusy."""
        arrived = asyncio.get_running_loop().time()
        self._tokenizing.append(arrived)
        try:
            for _ in range(TOKENIZE_TRIES):
                replica = await self._least_busy()
                with suppress(DeviceLost):
                    return await replica.loop.tokenize_images_once(prompt)
        finally:
            self._tokenizing.remove(arrived)
        raise MediaBusy

    async def _least_busy(self) -> Replica:
        """Wait until a replica serves. Return the one with the least to do. Raises MediaBusy once all are lost for good."""
        while not (serving := [each for each in self.replicas if each.serves]):
            alive = [each for each in self.replicas if not each.loop.ended.is_set()]
            if not alive:
                raise MediaBusy
            await any_set([*(each.up for each in alive), *(each.loop.ended for each in alive)])
        return min(serving, key=lambda each: self._placement.work(each.number))

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Queue a request on a replica. Raises GenerationFailed if all are lost, Overloaded if too many requests wait, ValueError if
        the request can never fit."""
        self._compare_paces()
        keys = self._keys(request, request.input_ids)
        choice = self._choose(len(request.input_ids), keys, request.stopping.max_new_tokens)
        if choice is None:
            return self._of_the_lost().loop.submit(request)
        replica = self.replicas[choice.replica]
        with replica.expecting(choice, keys):
            return replica.loop.submit(request)

    async def healthy(self) -> bool:
        """Return whether any replica can serve requests now, or will be opened for them."""
        if not self.serves() and self._resting:
            return True
        asked = {asyncio.ensure_future(each.loop.healthy()) for each in self.replicas if each.serves}
        try:
            while asked:
                done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                if any(each.result() for each in done):
                    return True
            return False
        finally:
            for each in asked:
                each.cancel()

    def snapshot(self) -> Snapshot:
        """Return the load of all replicas together."""
        states = tuple(each.state() for each in self.replicas)
        loads = [each.load for each in states]
        return Snapshot(
            sum(each.queued for each in loads),
            sum(each.running for each in loads),
            sum(each.blocks_free for each in loads),
            sum(each.blocks_total for each in loads),
            sum(each.query_tokens for each in loads),
            sum(each.hit_tokens for each in loads),
            sum(each.paused for each in loads),
            states,
            max((each.window_usage for each in loads), default=0.0),
        )

    # as a server's shards

    def serves(self) -> bool:
        """Return whether any replica serves."""
        return self._placement.up > 0

    async def ended(self) -> None:
        """Wait until all replicas are permanently lost."""
        await asyncio.gather(*(each.loop.ended.wait() for each in self.replicas))

    async def replace_all(self, reason: str) -> None:
        """Replace the shards of all replicas, one after another, each once another one serves. Their requests continue on the others.
        If a shard does not start again, the remaining ones are not replaced."""
        for replica in self.replicas:
            if replica.parked:
                continue
            await self._another_serves(replica)
            replica.loop.replace_shard(reason)
            await replica.up.wait()

    async def _another_serves(self, replica: Replica) -> None:
        await any_set(each.up for each in self.replicas if each is not replica)

    # scaling

    async def scale(self, rules: ScalingRules, every_s: float = 0.1) -> None:
        """Open and close replicas by the time that requests wait, until cancelled. All replicas of `rules.most` must have joined."""
        autoscaler, clock = Autoscaler(rules), asyncio.get_running_loop().time
        while True:
            change = autoscaler.decide(self._load(), clock())
            if change > 0:
                self._open_another()
            elif change < 0:
                self._close_one()
            await asyncio.sleep(every_s)

    def _load(self) -> PoolLoad:
        wanted = [each for each in self.replicas if not each.parked and each.lifecycle.shard is not Phase.FAILED]
        waits = [wait for each in self.replicas if (wait := each.longest_wait) is not None]
        if not self.serves():
            waits += [asyncio.get_running_loop().time() - since for since in self._tokenizing]
        loads = [each.loop.snapshot() for each in self.replicas]
        return PoolLoad(
            len(wanted),
            sum(not each.serves for each in wanted),
            max(waits, default=None),
            sum(load.queued + load.running for load in loads) + len(self._tokenizing),
            self.replicas[0].loop.capacity.max_rows,
        )

    def _open_another(self) -> None:
        parked = [each for each in self.replicas if each.parked and not each.serves]
        if parked:
            replica = max(parked, key=lambda each: len(each.waiting))
            _log.info("replica %d is opened", replica.number)
            replica.unpark()

    def _close_one(self) -> None:
        """Park the replica that has the least to do."""
        serving = [each for each in self.replicas if each.serves and not each.parked]
        if serving:
            replica = min(serving, key=lambda each: (self._placement.work(each.number), -each.number))
            _log.info("replica %d is closed", replica.number)
            replica.park("there is little to do")

    @property
    def _resting(self) -> bool:
        """Whether a replica is without a shard on purpose."""
        return any(each.lifecycle.resting for each in self.replicas)

    # placing

    def _keys(self, request: GenerationRequest, tokens: Iterable[int]) -> Keys:
        """Return the keys of a request's full blocks; none if it cannot use the cache."""
        prefixes = self.replicas[0].prefixes
        root, keys = prefixes.root(request.scheduling.salt, request.adapter), list[bytes]()
        if self.prefix_caching and not request.want.prompt_logprobs:
            known = list(tokens)
            prefixes.extend(keys, root, known, (len(known) - 1) // prefixes.block_size, request.image_spans)
        return root, keys

    def _choose(self, tokens: int, keys: Keys, answer: int, barred: int = 0) -> Choice | None:
        """Choose a replica that serves; None if there is none. One whose results cannot be trusted is chosen if there is no other."""
        unsound: Choice | None = None
        while (choice := self._placement.choose(tokens, keys[1], answer, barred)) is not None:
            replica = self.replicas[choice.replica]
            if replica.loop.sound:
                return choice
            unsound, barred = unsound or choice, barred | replica.bit
        return unsound

    def _of_the_lost(self) -> Replica:
        """Return the replica whose queue takes requests while none serves. Raises GenerationFailed."""
        alive = [each for each in self.replicas if each.lifecycle.shard is not Phase.FAILED]
        if not alive:
            raise GenerationFailed(self.replicas[0].lifecycle.loss)
        return min(alive, key=lambda each: (each.parked, len(each.waiting)))

    def _compare_paces(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._compared >= _COMPARE_EVERY_S:
            self._compared = now
            self._placement.compare_paces({each.number: each.loop.scheduler.times.by_size for each in self.replicas})

    # moving

    def _hand_over(self, replica: Replica) -> None:
        """Move the requests of a replica that does not serve to others.

        A request that has been on two lost shards without a token in between stays: it may be the cause, and its own scheduler runs it
        with few others once there is a shard again.
        """
        moved = 0
        for sequence in list(replica.loop.scheduler.sequences.values()):
            if sequence.losses <= _MOST_LOSSES:
                moved += self._move(replica, sequence)
        if moved:
            _log.warning("%d requests of replica %d continue on others", moved, replica.number)

    def _move(self, replica: Replica, sequence: Sequence) -> bool:
        """Move a request that has no row to another replica that serves. Return whether there is one."""
        tokens, keys = len(sequence.tokens), self._keys(sequence.request, sequence.tokens)
        choice = self._choose(tokens, keys, sequence.total - tokens, replica.bit)
        return choice is not None and self._move_to(choice, keys, replica, sequence)

    def _move_to(self, choice: Choice, keys: Keys, replica: Replica, sequence: Sequence) -> bool:
        to = self.replicas[choice.replica]
        if sequence.total > to.loop.limits.max_total_tokens:
            return False
        given = replica.loop.give_up(sequence.key)
        if given is None:
            return False
        with to.expecting(choice, keys):
            to.loop.adopt(*given)
        replica.moved += 1
        return True

    def _take_from_busiest(self, replica: Replica) -> None:
        """Let a replica without waiting requests take one from the busiest if it will be done earlier."""
        busiest = self._placement.busiest()
        if self._moving or replica.waiting or not replica.serves or busiest is None or busiest == replica.number:
            return
        other = self.replicas[busiest]
        key = next(reversed(other.waiting), None)
        if key is None:
            return
        sequence = other.waiting[key]
        if sequence.losses > _MOST_LOSSES:
            return
        choice = self._placement.worth_moving(other.charge(key), replica.number, len(sequence.tokens), sequence.keys)
        if choice is not None:
            self._moving = True  # it ends on the other replica, which must not take another one for it
            self._move_to(choice, (sequence.root, sequence.keys), other, sequence)
            self._moving = False

    def _changed(self, replica: Replica) -> None:
        """Note that a replica serves again or not, and tell the server."""
        if replica.serves != replica.up.is_set():
            _log.warning("replica %d: %s", replica.number, "serves again" if replica.serves else "does not serve")
        self._placement.set_up(replica.number, replica.serves)
        (replica.up.set if replica.serves else replica.up.clear)()
        self._tell_lifecycle(replica)
        if replica.serves:
            for other in self.replicas:
                if not other.serves:
                    self._hand_over(other)
            self._take_from_busiest(replica)

    def _tell_lifecycle(self, replica: Replica) -> None:
        phases = {each.lifecycle.shard for each in self.replicas if each.serves or not each.lifecycle.resting}
        lifecycle, loss = self._lifecycle, replica.lifecycle.loss
        if Phase.SERVING in phases or (self._resting and Phase.RESTARTING not in phases):
            if lifecycle.shard is Phase.RESTARTING:
                lifecycle.serving()
        elif Phase.RESTARTING in phases:
            lifecycle.restarting(loss, queueing=any(each.lifecycle.accepts for each in self.replicas))
        else:
            lifecycle.failed(loss)
