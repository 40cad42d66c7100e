"""Whole models over a kit for an accelerator whose device is this machine's CPU: only memory, streams and events are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tgi_conformance
import torch
from tgi_backend_cpu.kit import CpuKit

from tests.accelerators.runtimes import FakeRuntime
from tgi_core.backend import EMPTY, Feature, OpenOptions, Probe, ProbeStatus, Request, Sampling, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.accelerator.kit import AcceleratorKit
from tgi_core.engine.accelerator.open_model import open_accelerator
from tgi_core.engine.accelerator.queue import NewGraph
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.open_model import open_session

MODELS = Path(tgi_conformance.__file__).with_name("golden") / "models"
PROMPTS = ((5, 9, 2, 7, 11), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2))


class HostKit(AcceleratorKit):
    """The CPU, as if it were an accelerator."""

    name = "host"
    device_type = "cpu"
    collectives = "gloo"

    def providers(self) -> Sequence[AttentionProvider]:
        """Plain torch."""
        return (TorchAttention(),)

    def graph(self) -> NewGraph | str:
        """None."""
        return "a CPU has none"


def quiet(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


def tokens(kit: DeviceKit, model: str) -> tuple[list[list[int]], tuple[str, ...], int]:
    """What two rows make, one greedy and one drawn; the parts that were chosen; how many steps may be unread."""
    session = Session(open_session(OpenOptions(str(MODELS / model), "float32"), kit, quiet), "host")
    capacity = session.warmup(WarmupPlan(max_rows=2, max_row_tokens=64, max_step_tokens=64, num_blocks=16), quiet)
    count = 64 // capacity.groups[0].block_size
    requests = tuple(
        Request(
            id,
            prompt,
            len(prompt),
            0,
            (tuple(range(1 + (id - 1) * count, 1 + id * count)),),
            len(prompt),
            Sampling(do_sample=id == 2, seed=7),
        )
        for id, prompt in enumerate(PROMPTS, 1)
    )
    made: list[list[int]] = [[], []]
    step = session.prefill(requests, EMPTY, ())
    for _ in range(8):
        following = session.decode((step.handle,), ())
        for place, row in enumerate(session.rows(step).rows):
            made[place].extend(row.tokens)
        step = following
    parts = tuple(f"{kernel.part}: {kernel.name}" for kernel in session.capabilities().kernels)
    session.close()
    return made, parts, capacity.in_flight


@pytest.mark.parametrize(("model", "step"), [("llama", "step: table"), ("gpt2", "step: transformers' modules")])
def test_the_same_tokens_as_the_cpu_backend(model: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model read into a table and one of transformers' modules, one step ahead over the kit's stream: in float32 the CPU backend's
    very tokens, greedy and drawn."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    found, parts, in_flight = tokens(HostKit(0, 0.9, FakeRuntime()), model)
    expected, _, _ = tokens(CpuKit(torch.get_num_threads(), 0.9), model)
    assert found == expected and all(len(row) == 8 for row in found)
    assert in_flight == 2 and step in parts and "attention: torch" in parts and "graphs: none" in parts


@pytest.mark.parametrize(("devices", "declared"), [(("one",), False), (("one", "two"), True)])
def test_one_device_holds_one_rank(devices: tuple[str, ...], declared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks are declared only where a second one would find a device, so that a machine with one can earn its report."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    found = Probe(ProbeStatus.READY, devices=devices)
    options = OpenOptions(str(MODELS / "llama"), "float32")
    session = open_accelerator(options, quiet, found, {}, lambda: HostKit(0, 0.9, FakeRuntime()))
    assert isinstance(session, BaseSession)
    assert (Feature.TENSOR_PARALLEL in session.capabilities().features) is declared
