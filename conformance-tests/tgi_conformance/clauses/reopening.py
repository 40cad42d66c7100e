"""Sessions that come and go leave the process as it was."""

from __future__ import annotations

import contextlib
import gc
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tgi_conformance.clause import clause
from tgi_conformance.scene import Scene
from tgi_conformance.stage import Stage
from tgi_conformance.target import small_plan
from tgi_conformance.verdict import DoesNotApply, Level, Violation
from tgi_core.backend import WarmupPlan

_REOPENS, _FEWEST, _BUDGET_S = 30, 5, 8.0
"""Sessions opened one after the other: so many, or fewer where that takes longer than the budget."""
_CACHE_BYTES, _MOST_BLOCKS = 4 << 20, 1 << 16
"""What their caches hold, if so many blocks do, so that a cache that stays is seen beside what an allocator keeps."""
_ROOM_BYTES = _CACHE_BYTES // 4
"""By how much a process may grow with each session: allocators and the suite's own records take some."""
_PATIENCE_S = 2.0
"""How long threads and descriptors may outlive `close`."""
_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds: resident bytes, threads, open descriptors."""

    num_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Self:
        """As /proc says."""
        gc.collect()
        pages = int((_PROCESS / "statm").read_text().split()[1])
        return cls(pages * resource.getpagesize(), len([*(_PROCESS / "task").iterdir()]), len([*(_PROCESS / "fd").iterdir()]))

    @classmethod
    def settled(cls, before: Sequence[Held]) -> Held:
        """After a session, once it holds no more than after the last one, or after a while."""
        held, end = cls.now(), time.monotonic() + _PATIENCE_S
        while (
            before and (held.threads, held.descriptors) > (before[-1].threads, before[-1].descriptors) and time.monotonic() < end
        ):
            time.sleep(0.01)
            held = cls.now()
        return held


@contextlib.contextmanager
def _earlier_objects_left_alone() -> Iterator[None]:
    """The collector runs after every session; what there was before the first one need not be looked through each time."""
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if frozen:
            gc.freeze()


@clause("leaks.reopen", "Sessions that were closed leave no memory, threads or open files behind.", Level.L3)
def reopen(scene: Scene) -> None:
    """One after the other, each with a cache of some MiB; the later half is held to what the process held after the earlier one."""
    if not (_PROCESS / "statm").exists():
        raise DoesNotApply("no /proc here, which says what a process holds")
    plan, seen = _roomy(scene, small_plan(scene.declared[0].block_sizes)), list[Held]()
    end = time.monotonic() + _BUDGET_S
    with _earlier_objects_left_alone():
        while len(seen) < _FEWEST or (len(seen) < _REOPENS and time.monotonic() < end):
            _live(scene, plan)
            seen.append(Held.settled(seen))
    _compare(scene, seen[len(seen) // 2 - 1], seen[-1], len(seen) - len(seen) // 2)


def _live(scene: Scene, plan: WarmupPlan) -> int:
    """One session from open to close; how many bytes it said it held."""
    stage = scene.stage(plan, fresh=True)
    stage.decode(stage.start(stage.request(stage.prompts[0])))
    num_bytes = _num_bytes(stage)
    stage.play.session.close()
    return num_bytes


def _num_bytes(stage: Stage) -> int:
    return sum(share.num_bytes for share in stage.play.session.stats().memory)


def _roomy(scene: Scene, plan: WarmupPlan) -> WarmupPlan:
    """With blocks enough for the cache to be seen, by what a session with the usual ones and one with twice as many say."""
    if plan.num_blocks is None:
        return plan
    small, large = _num_bytes(scene.stage()), _live(scene, replace(plan, num_blocks=2 * plan.num_blocks))
    per_block = max(1, (large - small) // plan.num_blocks)
    return replace(plan, num_blocks=max(plan.num_blocks, min(_MOST_BLOCKS, -(-_CACHE_BYTES // per_block))))


def _compare(scene: Scene, early: Held, late: Held, sessions: int) -> None:
    grown = (late.num_bytes - early.num_bytes) / sessions
    scene.figures["bytes kept per session"] = max(0.0, grown)
    for what, before, after in (
        ("threads", early.threads, late.threads),
        ("open files", early.descriptors, late.descriptors),
    ):
        if after - before >= max(2, sessions // 2):
            raise Violation(
                "leak", f"the process has {after} {what}, {before} before the last {sessions} sessions were opened and closed"
            )
    if grown > _ROOM_BYTES:
        raise Violation("leak", f"each session that was closed leaves {grown / 2**20:.1f} MiB behind")
