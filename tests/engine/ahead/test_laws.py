"""What a verb may wait for, and what a failure reaches, one step ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.ahead.late import LateQueue
from tests.engine.ahead.opened import Ahead, open_on
from tests.engine.tiny_models import PROMPTS
from tgi_core.backend import (
    EMPTY,
    BackendBug,
    BackendError,
    DeviceLost,
    InvalidRequest,
    OutOfMemory,
    RowFaultKind,
    Sampling,
    UnknownBatch,
    WarmupPlan,
)


def alone(model: Path, prompt: tuple[int, ...], count: int) -> list[int]:
    """Greedy tokens of a prompt by itself, in lock step."""
    run = Ahead(open_on(None, model)[0])
    run.launch(run.request(1, prompt, count))
    for _ in range(count - 1):
        run.launch()
    run.finish()
    return run.tokens(1)


def test_verbs_do_not_wait(llama: Path) -> None:
    """Steps are given to the device and nothing is waited for; reading one leaves the next on the device."""
    queue = LateQueue()
    session, capacity = open_on(queue, llama)
    run = Ahead(session)
    assert capacity.in_flight == 2 and not queue.waiting
    run.launch(run.request(1, PROMPTS[0]), run.request(2, PROMPTS[1]))
    given = queue.waiting
    run.handle = session.filter(run.handle, (2,))
    run.launch()
    assert 0 < given < queue.waiting
    run.read()
    assert queue.waiting > 0
    run.finish()
    assert not queue.waiting
    session.clear(None)


def test_rows_that_the_host_samples_wait_for_their_own_tokens_only(llama: Path) -> None:
    """A row with a filter has its token chosen before it goes on; its next forward pass is given to the device meanwhile."""
    queue = LateQueue()
    run = Ahead(open_on(queue, llama)[0])
    run.launch(run.request(1, PROMPTS[0], sampling=Sampling(do_sample=True, top_p=0.5)))
    assert queue.waiting
    run.launch()
    assert queue.waiting
    run.finish()
    assert len(run.tokens(1)) == 2


def test_lock_step_is_a_switch(llama: Path) -> None:
    """A queue that says so has the core read each step before the next; graphs are another switch, and both are told."""
    session, capacity = open_on(LateQueue(in_flight=1, graphs="switched off"), llama)
    kernels = {kernel.part: (kernel.name, kernel.reason) for kernel in session.capabilities().kernels}
    assert capacity.in_flight == 1 and capacity.compiles == 0
    assert kernels["graphs"] == ("none", "switched off") and kernels["run ahead"][0] == "lock step"


def poisoned_block(session: Any, block: int) -> None:
    """NaN where a row has begun to keep its keys."""
    cache = session.implementation.runner.cache
    cache.layers[0].keys[block] = float("nan")


@pytest.mark.parametrize("graphs", [None, "switched off"])
def test_a_row_fault_ends_one_row(llama: Path, graphs: str | None) -> None:
    """NaN ends its row alone, though the next step was launched with it; seat and blocks serve their next owner."""
    queue = LateQueue(graphs=graphs)
    session, _ = open_on(queue, llama)
    run = Ahead(session)
    run.launch(run.request(1, PROMPTS[0]), run.request(2, PROMPTS[1]))
    run.read()
    poisoned_block(session, 1)
    run.launch()
    run.launch()
    faulted = run.read()
    assert faulted.rows[0].fault is not None and faulted.rows[0].fault.kind is RowFaultKind.NAN and not faulted.rows[1].fault
    assert [row.request_id for row in run.read().rows] == [2]
    run.handle = session.filter(run.handle, (2,))
    reused = run.request(3, PROMPTS[0])
    run.next_block = 1
    reused = run.request(3, PROMPTS[0])  # the blocks of the row that failed
    run.launch(reused)
    for _ in range(5):
        run.launch()
    run.finish()
    assert run.tokens(3) == alone(llama, PROMPTS[0], 6)
    assert run.tokens(2) == alone(llama, PROMPTS[1], 9)


@pytest.mark.parametrize("graphs", [None, "switched off"])
def test_a_seat_shows_nothing_of_its_last_row(llama: Path, graphs: str | None) -> None:
    """A short row sits where a long one failed: what NaN is left in the long one's blocks is not seen, however many there were."""
    session, _ = open_on(LateQueue(graphs=graphs), llama, WarmupPlan(max_rows=1, max_row_tokens=96, num_blocks=12))
    run = Ahead(session)
    run.launch(run.request(1, PROMPTS[0] * 6, 10))
    run.read()
    for block in range(1, 5):
        poisoned_block(session, block)
    run.launch()
    assert run.read().rows[0].fault is not None
    run.handle = session.filter(run.handle, ())
    run.next_block = 8
    run.launch(run.request(2, PROMPTS[1], 5))
    for _ in range(4):
        run.launch()
    run.finish()
    assert run.tokens(2) == alone(llama, PROMPTS[1], 5)


@pytest.mark.parametrize("eager", [False, True])
def test_a_seat_is_emptied_though_a_step_failed(llama: Path, eager: bool) -> None:
    """A step that failed may not have emptied its row's seat; the row after it sees nothing of the row before it all the same."""
    queue = LateQueue(eager=eager)
    session, _ = open_on(queue, llama, WarmupPlan(max_rows=1, max_row_tokens=96, num_blocks=12))
    run = Ahead(session)
    run.launch(run.request(1, PROMPTS[0] * 6, 10))
    run.read()
    run.handle = session.filter(run.handle, ())
    for block in range(1, 5):
        poisoned_block(session, block)
    queue.breaks.append(MemoryError())
    failing = session.prefill((run.request(2, PROMPTS[1], 5),), EMPTY, ())
    with pytest.raises(OutOfMemory):
        session.rows(failing)
    run.next_block = 8
    run.launch(run.request(3, PROMPTS[1], 5))
    for _ in range(4):
        run.launch()
    run.finish()
    assert run.tokens(3) == alone(llama, PROMPTS[1], 5)


def test_many_unread_steps(llama: Path) -> None:
    """More steps than the host has places for may be unread: the oldest are waited for, and nothing of them is lost."""
    session, _ = open_on(LateQueue(), llama)
    run = Ahead(session)
    steps = [session.prefill((run.request(1, PROMPTS[0]),), EMPTY, ())]
    for _ in range(5):
        steps.append(session.decode((steps[-1].handle,), ()))
    tokens = [session.rows(step).rows[0].tokens[0] for step in steps]
    assert tokens == alone(llama, PROMPTS[0], 6)


RAISED: list[tuple[Exception, type[BackendError]]] = [
    (torch.OutOfMemoryError("out of memory. Tried to allocate 9 bytes"), OutOfMemory),
    (MemoryError(), OutOfMemory),
    (TypeError("None"), BackendBug),
]


@pytest.mark.parametrize(("raised", "seen"), RAISED, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("eager", [False, True])
def test_a_failed_step_ends_its_rows(raised: Exception, seen: type[BackendError], eager: bool, llama: Path) -> None:
    """Whether it fails as it is given or later, the verb returns, reading it raises, and what was derived from it is dead.

    Rows that joined after it still get theirs, and the session goes on.
    """
    queue = LateQueue(eager=eager)
    session, _ = open_on(queue, llama)
    run = Ahead(session)
    queue.breaks.append(raised)
    failing = run.launch(run.request(1, PROMPTS[0]))
    derived = run.launch(run.request(2, PROMPTS[1]))
    with pytest.raises(seen):
        session.rows(failing)
    assert [row.request_id for row in session.rows(derived).rows] == [2]
    with pytest.raises(UnknownBatch):
        session.decode((derived.handle,), ())
    after = Ahead(session)
    after.next_block = 20
    after.launch(after.request(3, PROMPTS[2]))
    after.launch()
    after.finish()
    assert after.tokens(3) == alone(llama, PROMPTS[2], 2)


@pytest.mark.parametrize("raised", [torch.AcceleratorError("an illegal memory access"), RuntimeError("fell off the bus")])
def test_a_lost_device_is_lost_for_good(raised: Exception, llama: Path) -> None:
    """What the device's runtime says of a lost device is DeviceLost, from the step and from every verb after it."""
    queue = LateQueue()
    session, _ = open_on(queue, llama)
    run = Ahead(session)
    queue.breaks.append(raised)
    step = run.launch(run.request(1, PROMPTS[0]))
    with pytest.raises(DeviceLost):
        session.rows(step)
    with pytest.raises(DeviceLost):
        session.prefill((run.request(2, PROMPTS[1]),), EMPTY, ())
    assert session.clear(None).count == 0
    session.close()


def test_a_refused_verb_gives_nothing_to_the_device(llama: Path) -> None:
    """An error from a verb changed nothing: the batch goes on as if it had not been called."""
    queue = LateQueue()
    session, _ = open_on(queue, llama)
    run = Ahead(session)
    run.launch(run.request(1, PROMPTS[0]))
    given = queue.waiting
    with pytest.raises(InvalidRequest):
        session.prefill((run.request(2, (10**6,)),), run.handle, ())
    assert queue.waiting == given
    for _ in range(3):
        run.launch()
    run.finish()
    assert run.tokens(1) == alone(llama, PROMPTS[0], 4)


def test_seats_are_taken_again(llama: Path) -> None:
    """Many more requests than rows, each dropped while its step is on the device, and every one of them gets its own tokens."""
    plan = WarmupPlan(max_rows=2, max_row_tokens=48, num_blocks=12)
    session, _ = open_on(LateQueue(), llama, plan)
    wanted = [alone(llama, prompt, 3) for prompt in PROMPTS]
    run = Ahead(session)
    for id in range(1, 13):
        run.next_block = 1 + 3 * (id % 4)
        run.launch(run.request(id, PROMPTS[id % 3]))
        run.launch()
        run.launch()
        run.handle = session.filter(run.handle, (id,))  # the row before it has its three
        run.handle = session.filter(run.handle, ()) if id % 2 else run.handle
    run.finish()
    assert [run.tokens(id)[:3] for id in range(1, 13)] == [wanted[id % 3] for id in range(1, 13)]


def test_closing(llama: Path) -> None:
    """close may come twice and while a step is on the device; nothing runs after it."""
    session, _ = open_on(LateQueue(), llama)
    run = Ahead(session)
    step = run.launch(run.request(1, PROMPTS[0]))
    session.close()
    session.close()
    with pytest.raises(InvalidRequest):
        session.decode((step.handle,), ())
