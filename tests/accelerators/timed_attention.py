"""A device whose attention providers take the time that a test gives them, and a rank on such a device.

python -m tests.accelerators.timed_attention FD runs rank 1 of each checkpoint that the test sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.accelerators.runtimes import FakeRuntime, graphs_of
from tests.engine.rank_pair import answer
from tests.engine.tiny_models import silent
from tgi_core.backend import Group, Kernel, OpenOptions
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.attention.cache import PagedLayer
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.device_queue import CannotCapture
from tgi_core.engine.open_model import open_session


@dataclass
class Given:
    """What is made up about a provider: microseconds for a decode step and for a prompt, what its self-check says, what a step of the
    timing raises, its block sizes, and whether it looks at a step's rows on the host."""

    decode_us: float
    prompt_us: float
    wrong: str = ""
    fault: Exception | None = None
    block_sizes: tuple[int, ...] = TorchAttention.block_sizes
    plans: bool = False


class GivenAttention(TorchAttention):
    """Plain torch, as slow as it is told."""

    def __init__(self, name: str, given: Given, runtime: FakeRuntime) -> None:
        self.name, self._given, self._runtime = name, given, runtime
        self.block_sizes = given.block_sizes
        self.checks = 0

    def self_check(self, layers: Sequence[object], dtype: torch.dtype, device: torch.device) -> str:
        """As told."""
        self.checks += 1
        return self._given.wrong

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """Attention, and the clock goes on."""
        if self._given.plans and not step.order:
            raise CannotCapture("it plans every step on the host")
        timed = step.tables.shape[1] * self.block_sizes[0] >= 1024  # longer than any row of these tests
        if timed and self._given.fault is not None:
            raise self._given.fault
        self._runtime.clock_s += (self._given.prompt_us if step.prefill else self._given.decode_us) / 1e6
        return query.transpose(0, 1) if timed else super().attend(query, cache, step, parameters)


class TimedKit(AcceleratorKit):
    """The CPU, as if it were an accelerator that captures decode steps."""

    name = "host"
    device_type = "cpu"
    collectives = "gloo"

    def __init__(self, given: dict[str, Given], device: str = "Device X", captures: bool = True, table: bool = True) -> None:
        fake = FakeRuntime()
        fake.get_device_name = lambda _: device  # type: ignore[method-assign]
        super().__init__(0, 0.9, fake)
        self.fake, self._captures, self._table = fake, captures, table
        self.made = tuple(GivenAttention(name, each, fake) for name, each in given.items())

    def providers(self) -> Sequence[AttentionProvider]:
        """Those given."""
        return self.made

    def table_refusal(self) -> str:
        """Whether models run from their tables or through transformers' modules."""
        return "" if self._table else "modules are to be tried"

    def graph(self) -> NewGraph | str:
        """Graphs that take as long as what they captured."""
        return graphs_of(self.fake) if self._captures else "this device has none"


def chosen(folder: Path, kit: AcceleratorKit, group: Group | None = None) -> Kernel:
    """What a session says of its attention."""
    options = OpenOptions(str(folder), "float32") if group is None else OpenOptions(str(folder), "float32", group=group)
    with patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor):
        session = open_session(options, kit, silent)
    (kernel,) = (kernel for kernel in session.capabilities().kernels if kernel.part == "attention")
    session.close()
    return kernel


def run_rank(folder: Path, store: Path, rank: int, table: bool, decode_us: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What one of two ranks chooses, if its providers take so many microseconds for decode steps."""
    kit = TimedKit({name: Given(each, 100) for name, each in decode_us[rank].items()}, table=table)
    kernel = chosen(folder, kit, Group(rank, 2, f"file:{store}", rank, 2))
    return {"name": kernel.name, "reason": kernel.reason}


if __name__ == "__main__":
    answer(run_rank)
