"""What two ranks do together, in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tgi_core.backend import Group, PeerLost
from tgi_core.engine import collectives
from tgi_core.engine.collectives import open_collectives

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
