"""Warming up: what is measured, promised, captured and told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.ahead.opened import PLAN, Ahead, open_on
from tests.engine.tiny_models import PROMPTS, silent
from tgi_core.backend import OpenOptions, OutOfMemory, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.ahead.graphs import Bucket, buckets
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.device_queue import StepSampler, Usage
from tgi_core.engine.open_model import open_session


def test_buckets() -> None:
    """Small numbers one by one, then every eighth, and the largest; full ones at powers of two; the largest is first."""
    assert [bucket.rows for bucket in buckets(20) if not bucket.full] == [20, 16, 8, 4, 2, 1]
    assert [bucket.rows for bucket in buckets(20) if bucket.full] == [20, 16, 8, 4, 2, 1]
    assert buckets(1) == [Bucket(0, 1, True), Bucket(0, 1, False)]
    assert len([bucket for bucket in buckets(256) if not bucket.full]) == 35 and buckets(256)[0] == Bucket(0, 256, True)
    assert buckets(256, mixed=True)[:3] == [Bucket(512, 256, True), Bucket(512, 64, True), Bucket(512, 8, True)]
    assert all(any(bucket.rows >= rows for bucket in buckets(77)) for rows in range(1, 78))


def test_nothing_is_captured_after_warmup(llama: Path) -> None:
    """Decode steps are replayed, whatever their rows; what was counted at warmup is never counted again."""
    queue = LateQueue()
    session, capacity = open_on(queue, llama)
    run = Ahead(session)
    run.launch(*(run.request(id, PROMPTS[id % 3]) for id in range(1, 6)))
    for _ in range(4):
        run.launch()
    run.finish()
    made = queue.makers[-1].made
    assert capacity.compiles == len(made) == len(buckets(8)) == session.stats().compiles
    assert sum(graph.replays for graph in made) == 4


def test_graphs_and_steps_are_paid_for_before_the_cache(llama: Path) -> None:
    """What the largest steps and all graphs take, measured over two blocks, is kept from the cache; the plan names every share."""
    free = LateKit(None).free_bytes()
    for activations, first, second in ((free // 4, 1 << 20, 1 << 16), (free // 2, 1 << 24, 1 << 18)):
        queue = LateQueue()
        queue.usages += [Usage(activations, 0), Usage(1, 0), Usage(9, first), Usage(9, second)]
        _, capacity = open_on(queue, llama, WarmupPlan(max_rows=4, max_row_tokens=64))
        shares = {memory.name: memory.num_bytes for memory in capacity.memory}
        least = first + (len(buckets(4)) - 1) * second
        assert shares["activations"] == activations and least <= shares["graphs"] < least + (1 << 16)
        assert shares["kv cache"] + shares["activations"] + shares["graphs"] + shares["reserve"] == free


def test_no_room_is_out_of_memory(llama: Path) -> None:
    """Where graphs and activations leave no room for a row, warming up says so with the numbers."""
    queue = LateQueue()
    queue.usages += [Usage(1 << 30, 0)]
    with pytest.raises(OutOfMemory, match=r"activations of 1,073,741,824 and graphs of"):
        open_on(queue, llama)
    queue = LateQueue()
    session = Session(open_session(OpenOptions(str(llama), dtype="float32"), LateKit(queue), silent), "late")
    queue.breaks.append(torch.OutOfMemoryError("out of memory"))
    with pytest.raises(OutOfMemory):
        session.warmup(PLAN, silent)


def test_progress_and_plan_are_told(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Capturing counts up to what will be captured, and the shares of the memory are logged."""
    session = Session(open_session(OpenOptions(str(llama), dtype="float32"), LateKit(LateQueue()), silent), "late")
    heard: list[tuple[str, int, int, str]] = []
    with caplog.at_level(logging.INFO, "tgi_core.engine"):
        session.warmup(PLAN, lambda *told: heard.append(told))
    count = len(buckets(8))
    assert [told for told in heard if told[0] == "capturing graphs"] == [
        ("capturing graphs", done, count, "step") for done in range(count + 1)
    ]
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert all(f"memory plan: {name} " in told for name in ("weights (float32)", "kv cache", "activations", "graphs"))


def test_a_model_that_cannot_be_captured_runs_all_the_same(llama: Path) -> None:
    """It is told why, nothing is kept for graphs, and the tokens are the same."""
    session, capacity = open_on(LateQueue(graphs="!it asks for a number"), llama)
    verdict = next(kernel for kernel in session.capabilities().kernels if kernel.part == "graphs")
    assert (verdict.name, verdict.reason) == ("none", "it asks for a number")
    assert capacity.compiles == 0 and "graphs" not in {memory.name for memory in capacity.memory}
    run = Ahead(session)
    run.launch(run.request(1, PROMPTS[0]))
    run.launch()
    run.finish()
    assert len(run.tokens(1)) == 2


class ProcessingSampler(TorchSampler):
    """A sampler of all rows, which leaves those with processed logits without a token."""

    processes = True

    def choose_processed(self, *given: object, **options: object) -> None:
        """Nothing is sampled."""


class ProcessingQueue(LateQueue):
    """A late device with that sampler."""

    def sampler(self) -> StepSampler:
        """Its sampler."""
        return ProcessingSampler()


@pytest.mark.parametrize("queue", [LateQueue, ProcessingQueue])
def test_a_replay_that_is_wrong_is_found_at_load(
    llama: Path, monkeypatch: pytest.MonkeyPatch, queue: Callable[[], LateQueue]
) -> None:
    """A graph that computes something else than the step that it stands for is not used."""
    from tests.engine.ahead.recorded import RecordedGraph

    monkeypatch.setattr(RecordedGraph, "replay", lambda self: None)
    session = Session(open_session(OpenOptions(str(llama), dtype="float32"), LateKit(queue()), silent), "late")
    verdict = next(kernel for kernel in session.capabilities().kernels if kernel.part == "graphs")
    assert verdict.name == "none" and "replayed logits differ" in verdict.reason
