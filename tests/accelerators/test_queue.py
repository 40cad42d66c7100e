"""The queue over a stream: order, marks, graphs and memory, on a device that only takes notes."""

from __future__ import annotations

import pytest
import torch

from tests.accelerators.runtimes import FakeRuntime, graphs_of
from tgi_core.backend import DeviceLost, OutOfMemory, PeerLost
from tgi_core.engine.accelerator import graph_pool
from tgi_core.engine.accelerator.failures import FailureTexts, device_failure
from tgi_core.engine.accelerator.queue import NewGraph, StreamGraphs, StreamQueue
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.device_queue import CannotCapture, Usage


def queue_of(runtime: FakeRuntime, graph: NewGraph | str = "none") -> StreamQueue:
    """A queue, with the notes of its making dropped."""
    queue = StreamQueue(
        runtime, torch.device("meta", 0), lambda error: device_failure(error, FailureTexts()), graph, TorchSampler()
    )
    assert runtime.log == ["wait for the loading stream"]
    runtime.log.clear()
    return queue


def graphs_on(runtime: FakeRuntime, broken: Exception | None = None) -> StreamGraphs:
    """Captures graphs."""
    made = queue_of(runtime, graphs_of(runtime, broken)).graphs()
    assert isinstance(made, StreamGraphs)
    return made


def test_work_goes_into_the_stream() -> None:
    """Work is given to the queue's stream, and a mark is at its end."""
    runtime = FakeRuntime()
    queue = queue_of(runtime)
    queue.run(lambda: runtime.log.append("work"))
    queue.record().wait()
    assert runtime.log == ["(", "work", ")", "record", "wait"]


def test_a_mark_raises_what_its_work_failed_with() -> None:
    """A device's fault shows where the host waits, and is the contract's error there; others come as they are."""
    runtime = FakeRuntime()
    queue = queue_of(runtime)
    runtime.fault = RuntimeError("an illegal memory access was encountered")
    with pytest.raises(DeviceLost, match="illegal memory access"):
        queue.record().wait()
    runtime.fault = RuntimeError("something of ours")
    with pytest.raises(RuntimeError, match="something of ours"):
        queue.record().wait()


def test_a_wait_for_other_ranks_ends() -> None:
    """A device that waits for a rank that is gone never reaches its marks: the host gives up, with that reason."""
    runtime = FakeRuntime()
    queue = queue_of(runtime)
    queue.patience_s = 0.0
    queue.record().wait()
    runtime.stuck = True
    with pytest.raises(PeerLost, match="another rank is gone"):
        queue.record().wait()


def test_graphs_share_one_pool() -> None:
    """Work runs twice before it is captured, the second time with waits refused; graphs share a pool; replaying goes into the stream."""
    runtime = FakeRuntime()
    graphs = graphs_on(runtime)
    graph = graphs.capture(lambda: runtime.log.append("work"))
    run = ["(", "work", ")"]
    trial = ["waits: error", *run, "waits: default", "synchronize"]
    assert runtime.log == [*run, "synchronize", *trial, "(", "capture with pool 1, thread_local", "work", "captured", ")"]
    runtime.log.clear()
    graphs.capture(lambda: None)
    assert "capture with pool 1, thread_local" in runtime.log
    runtime.log.clear()
    graph.replay()
    assert runtime.log == ["(", "replay", ")"]


def test_what_cannot_be_captured() -> None:
    """The reason is told, the capture is ended, and the queue goes on; running out of memory is that, and no refusal."""
    runtime = FakeRuntime()
    graphs = graphs_on(runtime, RuntimeError("operation not permitted when stream is capturing"))
    with pytest.raises(CannotCapture, match="not permitted when stream is capturing"):
        graphs.capture(lambda: None)
    assert runtime.log[-2:] == ["captured", ")"]
    runtime = FakeRuntime()
    with pytest.raises(OutOfMemory):
        graphs_on(runtime, torch.OutOfMemoryError("out of memory")).capture(lambda: None)
    runtime = FakeRuntime()
    with pytest.raises(DeviceLost):
        graphs_on(runtime, RuntimeError("an illegal memory access was encountered")).capture(lambda: None)


def test_work_that_waits_is_named_before_a_capture_begins() -> None:
    """What the device's runtime says of a wait is the reason, waits are allowed again, and no capture has begun."""
    runtime = FakeRuntime()

    def work() -> None:
        if runtime.log.count("waits: error") > runtime.log.count("waits: default"):
            raise RuntimeError("called a synchronizing operation: item()")

    with pytest.raises(CannotCapture, match="synchronizing operation"):
        graphs_on(runtime).capture(work)
    assert runtime.log[-1] == "waits: default" and not any("capture with" in line for line in runtime.log)


@pytest.mark.parametrize(("version", "calls"), [("2.11.1", ["endAllocateToPool", "releasePool"]), ("2.12.0", [])])
def test_a_failed_capture_leaves_no_capture_underway(version: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch before 2.12 does not end the allocator's part of a capture that fails, so it is ended here; the next capture has a new pool."""
    done: list[str] = []
    for verb in ("endAllocateToPool", "releasePool"):
        monkeypatch.setattr(torch._C, f"_meta_{verb}", lambda index, pool, verb=verb: done.append(verb), raising=False)
    monkeypatch.setattr(graph_pool, "TORCH", version)
    runtime, broken = FakeRuntime(), [True]

    def work() -> None:
        if broken[0] and "capture with pool 1, thread_local" in runtime.log:
            raise RuntimeError("operation not permitted when stream is capturing")

    graphs = graphs_on(runtime)
    with pytest.raises(CannotCapture):
        graphs.capture(work)
    assert done == calls
    broken[0] = False
    graphs.capture(work)
    assert "capture with pool 2, thread_local" in runtime.log


def test_a_device_without_graphs() -> None:
    """The reason is returned in place of the capturer."""
    assert queue_of(FakeRuntime(), "too new").graphs() == "too new"


def test_measured_memory() -> None:
    """What work took at most, with the gaps that torch's allocator leaves, and what it kept, without what was there before."""
    runtime = FakeRuntime()
    queue = queue_of(runtime)
    runtime.take(1000)

    def work() -> None:
        runtime.take(500)
        runtime.take(-300)
        runtime.cached, runtime.pooled, runtime.gaps = 300, 50, 40

    assert queue.measured(work) == Usage(peak=590, kept=250)


def test_what_the_driver_keeps_for_a_graph_is_measured() -> None:
    """A graph's part outside torch's account counts as well: here 70 bytes more are gone from the device than torch has reserved."""
    runtime = FakeRuntime()

    def work() -> None:
        runtime.pooled, runtime.used = 30, 100

    assert queue_of(runtime).measured(work).kept == 100
