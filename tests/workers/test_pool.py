"""Worker processes: a death is never taken for a verdict on the request, nor for the end of the pool."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tgi_core.workers import pool as pools
from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerError, WorkerLost, WorkerPool

TOY = Path(__file__).with_name("toy.py")
SECONDS = "0.2"


@asynccontextmanager
async def opened(size: int = 1, waiting: int = 8, wait_s: float = 60.0) -> AsyncIterator[WorkerPool]:
    """A pool of toys, ended with the block."""
    pool = WorkerPool(python(TOY), [SECONDS], size=size, waiting=waiting, wait_s=wait_s)
    try:
        yield pool
    finally:
        pool.close()


async def gone(pid: int) -> None:
    """Until a process is no more, not even a zombie."""
    while Path(f"/proc/{pid}").exists():
        await asyncio.sleep(0)


async def test_a_large_message() -> None:
    """Megabytes go both ways."""
    async with opened() as pool:
        text = b"x" * (4 << 20)
        assert await pool.ask(b"echo " + text) == text


async def test_killed_while_idle() -> None:
    """A worker that dies between requests is reaped at once, and the next request gets another."""
    async with opened() as pool:
        first = int(await pool.ask(b"pid"))
        os.kill(first, signal.SIGKILL)
        await gone(first)
        assert int(await pool.ask(b"pid")) != first


async def test_a_burst_needs_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that a worker answers soon start no others."""
    monkeypatch.setattr(pools, "PATIENCE_S", 60.0)
    async with opened(size=4, waiting=16) as pool:
        assert len(set(await asyncio.gather(*(pool.ask(b"pid") for _ in range(16))))) == 1


async def test_who_stays_busy_gets_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request does not wait for one that takes long; what comes later waits for neither, nor does what has waited in vain."""
    monkeypatch.setattr(pools, "PATIENCE_S", 0.01)
    async with opened(size=3) as pool:
        spinning = asyncio.create_task(pool.ask(b"spin"))
        await asyncio.sleep(0)
        assert await pool.ask(b"echo here") == b"here"
        assert await asyncio.gather(*(pool.ask(b"echo there") for _ in range(8))) == [b"there"] * 8
        with pytest.raises(TooCostly):
            await spinning


async def test_all_killed_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kills all idle workers at once, as a lack of memory may, costs no request."""
    monkeypatch.setattr(pools, "PATIENCE_S", 0.0)
    async with opened(size=3) as pool:
        found = {int(pid) for pid in await asyncio.gather(*(pool.ask(b"pid") for _ in range(3)))}
        assert len(found) == 3
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        assert int(await pool.ask(b"pid")) not in found


@pytest.mark.parametrize("end", ["kill", "abort", "segfault", "exit"])
async def test_lost_in_the_middle(tmp_path: Path, end: str) -> None:
    """A request whose worker dies is answered by the next one."""
    async with opened() as pool:
        assert await pool.ask(f"once {tmp_path / 'lost'} {end}".encode()) == b"spared"


async def test_stopped_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped, or waits for what never comes, is replaced: it uses no processor time."""
    monkeypatch.setattr(pools, "STUCK_S", 0.5)
    async with opened() as pool:
        assert await pool.ask(f"once {tmp_path / 'lost'} stop".encode()) == b"spared"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (b"spin", TooCostly),
        (b"abort", WorkerCrashed),
        (b"segfault", WorkerCrashed),
        (b"raise", WorkerCrashed),
        (b"kill", WorkerLost),
    ],
)
async def test_what_ends_every_worker(request_: bytes, error: type[WorkerError]) -> None:
    """What a request costs and how its workers end tell apart a costly request, a bad one, and an unlucky one; the pool goes on."""
    async with opened() as pool:
        with pytest.raises(error):
            await pool.ask(request_)
        assert await pool.ask(b"echo hello") == b"hello"


async def test_slow_is_not_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time by the clock does not count: a worker that is kept from the processor is waited for."""
    monkeypatch.setattr(pools, "STUCK_S", 0.5)
    async with opened() as pool:
        pid = int(await pool.ask(b"pid"))
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.create_task(pool.ask(b"echo late"))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        assert await asked == b"late" and int(await pool.ask(b"pid")) == pid


async def test_who_waits() -> None:
    """More than may wait are refused at once, and those that wait too long are refused then."""
    async with opened(waiting=1, wait_s=0.01) as pool:
        spinning = asyncio.create_task(pool.ask(b"spin"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.ask(b"echo late"))
        await asyncio.sleep(0)
        with pytest.raises(PoolBusy):
            await pool.ask(b"echo refused")
        with pytest.raises(PoolBusy):
            await waiting
        with pytest.raises(TooCostly):
            await spinning


async def test_whoever_leaves_costs_no_worker() -> None:
    """A request that is abandoned is finished, and its worker serves the next."""
    async with opened() as pool:
        pid = await pool.ask(b"pid")
        leaving = asyncio.create_task(pool.ask(b"echo nobody"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await pool.ask(b"pid") == pid


async def test_close() -> None:
    """All workers end with the pool, those at work too."""
    async with opened(size=2) as pool:
        idle = int(await pool.ask(b"pid"))
        working = asyncio.create_task(pool.ask(b"spin"))
        await asyncio.sleep(0)
        pool.close()
        await gone(idle)
        with pytest.raises(WorkerError):
            await working
        with pytest.raises(WorkerLost):
            await pool.ask(b"pid")
