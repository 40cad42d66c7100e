"""Opening and closing sessions leaves nothing behind in the process."""

from __future__ import annotations

import contextlib
import gc
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tgi_conformance.clause import clause
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.target import small_plan
from tgi_conformance.verdict import DoesNotApply, Level, Violation
from tgi_core.backend import WarmupPlan

_REOPENS, _FEWEST, _BUDGET_S = 30, 4, 8.0
"""Sessions opened one after another: usually the first number, at least the second once the budget (in seconds) is spent."""
_CACHE_BYTES, _MOST_BLOCKS = 4 << 20, 1 << 16
"""Bytes that each session's cache should hold, so that a leaked cache stands out from allocator noise, and the most blocks to ask
for."""
_ROOM_BYTES = _CACHE_BYTES // 4
"""How many bytes a process may grow per session: allocators and the suite's own records take some."""
_PATIENCE_S = 2.0
"""Seconds that threads and descriptors may outlive `close`."""
_NAMED = 5
"""How many thread names a message lists at most, the most frequent first."""
_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of this process: resident bytes, threads, open descriptors."""

    num_bytes: int
    threads: int
    descriptors: int
    names: Counter[str]
    """Names of the threads; those that Python has not started have the kernel's names."""

    @classmethod
    def now(cls) -> Self:
        """Read the current values from /proc."""
        gc.collect()
        pages = int((_PROCESS / "statm").read_text().split()[1])
        names = _thread_names()
        return cls(pages * resource.getpagesize(), names.total(), len([*(_PROCESS / "fd").iterdir()]), names)

    @classmethod
    def settled(cls, before: Sequence[Held]) -> Held:
        """Return what is held once threads and descriptors are no more than before, or when patience runs out."""
        held, end = cls.now(), time.monotonic() + _PATIENCE_S
        while (
            before and (held.threads, held.descriptors) > (before[-1].threads, before[-1].descriptors) and time.monotonic() < end
        ):
            time.sleep(0.01)
            held = cls.now()
        return held


def _thread_names() -> Counter[str]:
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    names = Counter[str]()
    for task in (_PROCESS / "task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            name = known.get(int(task.name)) or (task / "comm").read_text().strip()
            names[re.sub(r"[-_ ]*\d+", "", name)] += 1  # pools and Python itself number their threads
    return names


@contextlib.contextmanager
def _earlier_objects_left_alone() -> Iterator[None]:
    """Exclude objects from before the first session from garbage collection, which runs after every session."""
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if frozen:
            gc.freeze()


@clause("leaks.reopen", "Closed sessions leave no memory, threads or open files behind.", Level.L3)
def reopen(scene: Scene) -> None:
    """Open and close sessions with caches of some MiB, and compare the process after the second half with the process after the
    first half."""
    if not (_PROCESS / "statm").exists():
        raise DoesNotApply("without /proc the suite cannot tell what the process holds")
    plan, seen = _roomy(scene, small_plan(scene.declared[0].block_sizes)), list[Held]()
    end = time.monotonic() + _BUDGET_S
    with _earlier_objects_left_alone():
        while len(seen) < _FEWEST or (len(seen) < _REOPENS and time.monotonic() < end):
            _live(scene, plan)
            seen.append(Held.settled(seen))
    _compare(scene, seen[len(seen) // 2 - 1], seen[-1], len(seen) - len(seen) // 2)


def _live(scene: Scene, plan: WarmupPlan) -> int:
    """Open, use and close one session; return the bytes that it reported."""
    stage = scene.stage(plan, fresh=True)
    stage.decode(stage.start(stage.request(stage.prompts[0])))
    num_bytes = _num_bytes(stage)
    stage.play.session.close()
    return num_bytes


def _num_bytes(stage: Stage) -> int:
    return sum(share.num_bytes for share in stage.play.session.stats().memory)


def _roomy(scene: Scene, plan: WarmupPlan) -> WarmupPlan:
    """Return the plan with enough blocks for a leaked cache to show.

    A block's size is calculated from what sessions with the usual number of blocks and with twice as many report.
    """
    if plan.num_blocks is None:
        return plan
    small, large = _num_bytes(scene.stage()), _live(scene, replace(plan, num_blocks=2 * plan.num_blocks))
    per_block = max(1, (large - small) // plan.num_blocks)
    return replace(plan, num_blocks=max(plan.num_blocks, min(_MOST_BLOCKS, -(-_CACHE_BYTES // per_block))))


def _compare(scene: Scene, early: Held, late: Held, sessions: int) -> None:
    grown = (late.num_bytes - early.num_bytes) / sessions
    scene.figures["bytes kept per session"] = max(0.0, grown)
    left = ", ".join(f"{name} ({count})" for name, count in (late.names - early.names).most_common(_NAMED))
    for what, before, after, which in (
        ("threads", early.threads, late.threads, f"; those that are new: {left}"),
        ("open files", early.descriptors, late.descriptors, ""),
    ):
        if after - before >= max(2, sessions // 2):
            text = f"the process has {after} {what}, {before} before the last {sessions} sessions were opened and closed{which}"
            raise Violation("leak", text)
    if grown > _ROOM_BYTES:
        raise Violation("leak", f"each closed session leaves {grown / 2**20:.1f} MiB behind")
