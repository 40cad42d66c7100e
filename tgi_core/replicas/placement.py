"""Which replica serves a request: the one that is expected to finish it first.

Work is counted in tokens. A replica has the prompts that wait, as far as they are not in its cache, and half of the answers that its
requests are expected to get; the new request adds what the replica's cache lacks of its prompt, and waits for blocks that are not free. A
replica whose steps take longer than the others' counts each token for more. The lowest sum wins. So the longest prefix hit decides
between replicas that are about equally busy, and a busy replica loses a request as soon as computing its prompt again is cheaper than
waiting.

Only a few replicas are weighed for each request: the least busy of those that hold the longest prefix, then of those that hold a quarter
of it, and so on, and the least busy of all, unless none of them can win. The cost of a decision depends neither on the number of replicas
nor on the length of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median

from tgi_core.replicas.holders import Holders
from tgi_core.replicas.load_order import LoadOrder

_USUAL_ANSWER = 128.0
"""Assumed number of tokens of an answer, before the first one is complete."""
_ANSWER_WEIGHT = 0.05
"""Weight of the latest answer in the moving average of their lengths."""
_ANSWER_TOKEN = 0.5
"""Work of a token of an answer, in tokens of a prompt: it shares a step that other rows need anyway."""
_FEW = 4
"""Maximum number of holders of a prefix that are all weighed; of more, the least busy two."""
_LEAST_BUSY = 2
"""Number of the least busy of all replicas that are weighed, whatever they hold."""
_SPREAD = 4
"""Ratio of the lengths of two prefixes whose holders are looked up one after the other."""
_MOST_SLOWNESS = 16.0
_NEVER = math.inf


@dataclass(slots=True)
class Choice:
    """The replica for a request, and the number of its tokens that are in that replica's cache."""

    replica: int
    hit: int


@dataclass(slots=True, eq=False)
class Charge:
    """What a request adds to a replica's work, in tokens: `prompt` until its first step, `answer` until its end."""

    replica: int
    prompt: float
    answer: float


@dataclass(slots=True)
class _Load:
    """The work of one replica, in tokens."""

    blocks_free: Callable[[], int]
    waiting: float = 0.0
    answers: float = 0.0
    slowness: float = 1.0
    work: float = 0.0


class Placement:
    """Chooses replicas for requests, and tracks their work. Replicas are numbered from 0. Single-threaded."""

    def __init__(self, block_size: int, holders: Holders | None = None) -> None:
        self.holders = Holders() if holders is None else holders
        self.answer = _USUAL_ANSWER
        """Moving average of the length of answers."""
        self._block_size = block_size
        self._loads: list[_Load] = []
        self._order = LoadOrder()
        """Replicas that are up."""
        self._least_slowness = 1.0
        self._up = 0
        """Replicas that are up, as bits."""

    @property
    def up(self) -> int:
        """Number of replicas that are up."""
        return len(self._order)

    def add(self, blocks_free: Callable[[], int]) -> int:
        """Add a replica, which is up, and return its number. `blocks_free` returns the number of its blocks that can be allocated."""
        self._loads.append(_Load(blocks_free))
        self.set_up(len(self._loads) - 1, True)
        return len(self._loads) - 1

    def set_up(self, replica: int, up: bool) -> None:
        """Record that a replica serves, or that it does not."""
        if up == bool(self._up >> replica & 1):
            return
        self._up ^= 1 << replica
        if up:
            self._order.put(replica, self._loads[replica].work)
        else:
            self._order.remove(replica)

    def choose(self, tokens: int, keys: list[bytes], answer: int, barred: int = 0) -> Choice | None:
        """Choose a replica for a request with `tokens` tokens so far, whose full blocks have `keys`, and at most `answer` tokens to
        come. None if all replicas are down or among the bits of `barred`."""
        if not self._order:
            return None
        chosen, found, least = -1, 0, _NEVER
        expected, lowest = min(float(answer), self.answer), self._loads[self._order.first].work
        for replicas, hit, shorter in self._candidates(keys, self._up & ~barred if barred else self._up):
            for replica in replicas:
                load = self._loads[replica]
                if load.work + load.slowness * (tokens - hit) < least:
                    cost = self._cost(load, tokens - hit, expected)
                    if cost < least:
                        chosen, found, least = replica, hit, cost
            if least <= lowest + self._least_slowness * (tokens - shorter):
                break
        return None if chosen < 0 else Choice(chosen, found)

    def place(self, choice: Choice, tokens: int, answer: int) -> Charge:
        """Charge a replica for the request that it was chosen for."""
        charge = Charge(choice.replica, float(tokens - choice.hit), min(float(answer), self.answer))
        load = self._loads[choice.replica]
        load.waiting += charge.prompt
        load.answers += charge.answer
        self._sort(choice.replica)
        return charge

    def started(self, charge: Charge) -> None:
        """A request's prompt is being computed, and waits no longer."""
        self._loads[charge.replica].waiting -= charge.prompt
        charge.prompt = 0.0
        self._sort(charge.replica)

    def ended(self, charge: Charge, made: int = 0) -> None:
        """A request has ended, after `made` tokens if it is complete, or has been given up."""
        load = self._loads[charge.replica]
        load.waiting -= charge.prompt
        load.answers -= charge.answer
        charge.prompt = charge.answer = 0.0
        if made:
            self.answer += _ANSWER_WEIGHT * (made - self.answer)
        self._sort(charge.replica)

    def busiest(self) -> int | None:
        """Return the replica with the most work of those that are up; None if it has no waiting prompts."""
        if not self._order or self._loads[self._order.last].waiting <= 0:
            return None
        return self._order.last

    def worth_moving(self, charge: Charge, to: int, tokens: int, keys: list[bytes]) -> Choice | None:
        """Return the choice of the replica `to` for a waiting request of `tokens` tokens, if it is expected to finish earlier there."""
        choice = Choice(to, self.holders.longest(keys, 1 << to)[0] * self._block_size)
        cost = self._cost(self._loads[to], tokens - choice.hit, charge.answer)
        return choice if cost < self._loads[charge.replica].work else None

    def compare_paces(self, paces: Mapping[int, Mapping[int, float]]) -> None:
        """Compare replicas by their times of like steps: by replica and size of the step, in seconds. Small differences are noise, and
        do not count: a replica's tokens count for more in steps of a factor of √2."""
        by_size: dict[int, list[float]] = {}
        for pace in paces.values():
            for size, seconds in pace.items():
                by_size.setdefault(size, []).append(seconds)
        usual = {size: median(seconds) for size, seconds in by_size.items()}
        for replica, pace in paces.items():
            ratios = [seconds / usual[size] for size, seconds in pace.items() if seconds > 0 and usual[size] > 0]
            ratio = median(ratios) if ratios else 1.0
            steps = round(2 * math.log2(min(_MOST_SLOWNESS, max(1 / _MOST_SLOWNESS, ratio))))
            self._loads[replica].slowness = 2.0 ** (steps / 2)
            self._sort(replica)
        self._least_slowness = min((load.slowness for load in self._loads), default=1.0)

    def work(self, replica: int) -> float:
        """Return a replica's work, in tokens."""
        return self._loads[replica].work

    def _cost(self, load: _Load, missing: int, answer: float) -> float:
        tokens = load.waiting + missing
        short = (tokens + answer) / self._block_size - load.blocks_free()
        return load.slowness * (tokens + _ANSWER_TOKEN * load.answers + max(0.0, short) * self._block_size)

    def _candidates(self, keys: list[bytes], among: int) -> Iterator[tuple[Iterable[int], int, int]]:
        """Yield replicas with the tokens of the prefix that they hold, most tokens first, and what the next ones hold."""
        seen, size = 0, self._block_size
        blocks, holding = self.holders.longest(keys, among)
        while blocks:
            shorter = blocks // _SPREAD or blocks // 2
            yield self._least_busy_of(holding & ~seen), blocks * size, shorter * size
            seen, blocks = holding, shorter  # those that hold more hold this as well
            if blocks:
                holding = self.holders.of(keys[blocks - 1]) & among
        least_busy = islice((each for each in self._order if among >> each & 1), _LEAST_BUSY)
        yield (each for each in least_busy if not seen >> each & 1), 0, 0

    def _least_busy_of(self, replicas: int) -> Iterable[int]:
        """Return all of a few replicas; of many, the least busy, or some that are not among the least busy of all."""
        if not replicas & (replicas - 1):
            return (replicas.bit_length() - 1,) if replicas else ()
        if replicas.bit_count() > _FEW and (least_busy := replicas & self._order.least_busy):
            if least_busy.bit_count() > _FEW:
                return islice((each for each in self._order if replicas >> each & 1), _LEAST_BUSY)
            replicas = least_busy
        found: list[int] = []
        while replicas and len(found) < _FEW:
            low = replicas & -replicas
            found.append(low.bit_length() - 1)
            replicas ^= low
        return found

    def _sort(self, replica: int) -> None:
        """Compute a replica's work, and move it to its place in the order."""
        load = self._loads[replica]
        load.work = load.slowness * (load.waiting + _ANSWER_TOKEN * load.answers)
        if self._up >> replica & 1:
            self._order.put(replica, load.work)
