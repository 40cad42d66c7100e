"""Rank 1 of a pair that sums over a stand-in for symmetric memory; see `rank_worker`.

python -m tests.engine.ahead.all_reduce_worker FD
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.engine.ahead.late import LateQueue
from tests.engine.ahead.rank_worker import TableKit, run_rank
from tests.engine.rank_pair import answer
from tgi_core.engine.all_reduce import AllReduceOptions


class GatheredMemory:
    """Symmetric memory between processes: what all ranks have is gathered, and summed in the order of ranks.

    Only rank 1 has the `fault`: it refuses, fails to allocate or connect, gets another sum, or one that cannot be captured.
    """

    name = "one-shot"

    def __init__(self, rank: int, fault: str) -> None:
        self._rank = rank
        self._fault = fault if rank == 1 or fault == "all wrong" else ""
        self.connected = False
        self.sizes: set[int] = set()
        """Elements of the tensors that were summed."""

    def refusal(self, dtype: torch.dtype, device: torch.device) -> str:
        """None, or the fault."""
        return "it is no use" if self._fault == "refusal" else ""

    def empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Plain memory."""
        if self._fault == "empty":
            raise RuntimeError("out of symmetric memory")
        return torch.zeros(elements, dtype=dtype, device=device)

    def connect(self, buffer: Tensor, group: str) -> None:
        """Note it."""
        self.connected = True
        if self._fault == "connect":
            raise RuntimeError("no peer access")

    def reduce(self, buffer: Tensor, tensor: Tensor, group: str) -> Tensor:
        """The sum, in the order of ranks."""
        assert self.connected and buffer.shape == tensor.shape
        self.sizes.add(tensor.numel())
        buffer.copy_(tensor)
        operators = torch.ops._c10d_functional
        every = buffer.new_zeros(
            2, buffer.numel()
        )  # what others have is added to zeros: gathered in place, as recordings need it
        every[self._rank].copy_(buffer)
        every = operators.wait_tensor(operators.all_reduce_(every, "sum", group))
        summed: Tensor = every[0] + every[1]
        if self._fault in ("wrong", "all wrong"):
            summed = summed + 1
        if self._fault == "asks":
            summed = summed * (1 if float(summed[0]) else 2)
        return summed


class SummingKit(TableKit):
    """A late device with such a memory."""

    def __init__(self, memory: GatheredMemory, most_bytes: int, reason: str, queue: LateQueue) -> None:
        super().__init__(queue)
        self._options = AllReduceOptions(memory, most_bytes, reason)

    def all_reduce(self) -> AllReduceOptions:
        """As the test wants it."""
        return self._options


def run_summing(folder: Path, store: Path, rank: int, fault: str, most_bytes: int = 1024, reason: str = "") -> dict[str, Any]:
    """What one of two ranks makes of a checkpoint, and the sizes of the tensors that it summed in symmetric memory."""
    memory = GatheredMemory(rank, fault)
    found = run_rank(folder, store, rank, 2, partial(SummingKit, memory, most_bytes, reason))
    return found | {"sizes": sorted(memory.sizes)}


if __name__ == "__main__":
    answer(run_summing)
