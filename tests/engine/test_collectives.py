"""What two ranks do together, in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tgi_backend_cpu import plugin
from torch.distributed import HashStore

from tests.engine.tiny_models import silent
from tgi_core.backend import EMPTY, Group, OpenOptions, PeerLost, Request, WarmupPlan
from tgi_core.engine import collectives
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.collectives import Collectives, open_collectives
from tgi_core.engine.rank_session import RankSession

OTHER = """
import sys, torch
from tgi_core.backend import Group
from tgi_core.engine.collectives import open_collectives
print("up", flush=True)
ranks = open_collectives(Group(1, 2, sys.argv[1], 1, 2), "gloo", torch.device("cpu"))
ranks.reduce(torch.tensor([1.0, 2.0]))
ranks.gather(torch.tensor([[3.0]]), (2, 1))
ranks.least(3)
print(ranks.tell([0, 0]), flush=True)
print(ranks.share(b"", 3), ranks.share(b"", 3), flush=True)
sys.stdin.readline()
ranks.reduce(torch.tensor([2.0]))
sys.stdin.read()
"""


def test_two_ranks_sum_gather_agree_and_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums, uneven parts put together, the least of two numbers, rank 0's words. Until serving starts the ranks wait for one that
    compiles; then one that stands still is given up after a bounded time."""
    monkeypatch.setattr(collectives, "STEP_S", 5)
    meeting = f"file:{tmp_path / 'store'}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", OTHER, meeting]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        ranks = open_collectives(Group(0, 2, meeting, 0, 2), "gloo", torch.device("cpu"))
        try:
            assert ranks.leads and ranks.reduce(torch.tensor([10.0, 20.0])).tolist() == [11, 22]
            assert ranks.gather(torch.tensor([[1.0, 2.0]]), (2, 1)).tolist() == [[1, 2, 3]]
            assert ranks.least(7) == 3
            assert ranks.tell([4, -1]) == [4, -1]
            assert other.stdout.readline().strip() == "[4, -1]"
            assert (ranks.share(b"abc", 3), ranks.share(b"ab", 3)) == (b"abc", b"")  # of another size than agreed: none
            assert other.stdout.readline().strip() == "b'abc' b''"
            late = threading.Timer(6, lambda: print(file=other.stdin, flush=True))
            late.start()
            assert ranks.reduce(torch.tensor([1.0])).tolist() == [
                3
            ]  # of a rank that still compiles: it may take longer than a step
            ranks.start_serving()
            with pytest.raises(PeerLost, match="more than 5 s"):
                ranks.reduce(torch.ones(2))
        finally:
            ranks.close()
            other.kill()


class DeviceOf:
    """A device that reaches what it was given after so many looks; None: never, as where a collective waits for a lost rank."""

    def __init__(self, looks: int | None) -> None:
        self.looks, self.log = looks, list[str]()

    def __call__(self) -> DeviceOf:
        return self

    def record(self) -> None:
        """Noted."""
        self.log.append("record")

    def query(self) -> bool:
        """One look."""
        self.log.append("look")
        return self.looks is not None and self.log.count("look") > self.looks


def test_a_device_that_waits_for_a_lost_rank_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host looks whether the device is done, for a bounded time, instead of waiting for it in a call that nothing can end."""
    monkeypatch.setattr(collectives, "POLL_S", 0)
    busy, stuck = DeviceOf(3), DeviceOf(None)
    Collectives(0, 2, HashStore(), torch.device("cpu"), busy).settle()
    assert busy.log == ["record", *["look"] * 4]
    monkeypatch.setattr(collectives, "LOADING_S", 0)
    with pytest.raises(PeerLost, match="another rank is gone"):
        Collectives(0, 2, HashStore(), torch.device("cpu"), stuck).settle()


class Alone(Collectives):
    """A rank 0 whose words reach nobody."""

    def tell(self, values: Sequence[int]) -> list[int]:
        """Themselves."""
        return list(values)


def test_a_lost_rank_is_a_step_s_failure(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 finds out before it reads a logit: the step fails with PeerLost, and the process goes on to say so."""
    monkeypatch.setattr(collectives, "LOADING_S", 0)
    opened = plugin.backend_open(OpenOptions(str(llama), dtype="float32"), silent)
    assert isinstance(opened, BaseSession)
    runner = opened.runner
    ranks = Alone(0, 2, HashStore(), torch.device("cpu"), DeviceOf(None))
    session = RankSession(runner, opened.shape, None, ranks)
    monkeypatch.setattr(ranks, "start_serving", lambda: None)
    session.warmup(WarmupPlan(max_rows=2, max_row_tokens=32), silent)
    monkeypatch.setattr("tgi_core.engine.sync_session.row_results", None)
    step = session.prefill((Request(1, (1, 2, 3), 3, 0, ((1,),), 3),), EMPTY, ())
    with pytest.raises(PeerLost):
        session.rows(step)
