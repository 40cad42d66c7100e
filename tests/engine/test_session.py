"""The laws of the contract, over the engine's session."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.tiny_models import NEW_TOKENS, PROMPTS, VOCAB, Schedule, open_cpu, silent
from tgi_core.backend import (
    EMPTY,
    BackendBug,
    BackendError,
    Capacity,
    CapacityExceeded,
    Grant,
    Handle,
    InvalidRequest,
    MaskRow,
    OutOfMemory,
    OutputOptions,
    RowFaultKind,
    Sampling,
    Step,
    UnknownBatch,
    UnknownRequest,
    Unsupported,
    WarmupPlan,
)
from tgi_core.backend.session import Session

_next_id = iter(range(1000, 10**9))


def fresh() -> int:
    """A request id that no test has used."""
    return next(_next_id)


def alone(schedule: Schedule, prompt: tuple[int, ...], count: int = NEW_TOKENS) -> list[int]:
    """Greedy tokens of a prompt that runs by itself."""
    id = fresh()
    run = Schedule(schedule.session, schedule.capacity)
    run.step(run.request(id, prompt, len(prompt)))
    while len(run.tokens[id]) < count:
        run.step()
    run.session.clear(run.handle)
    return run.tokens[id]


def test_handles_are_single_use(schedule: Schedule) -> None:
    """The verb that takes a handle kills it."""
    schedule.step(schedule.request(fresh(), PROMPTS[0], 9))
    old = schedule.handle
    schedule.step()
    for use in (
        lambda: schedule.session.decode((old,), ()),
        lambda: schedule.session.filter(old, ()),
        lambda: schedule.session.clear(old),
    ):
        with pytest.raises(UnknownBatch):
            use()


def test_never_given_handle(schedule: Schedule) -> None:
    """A handle that was never given out names nothing."""
    with pytest.raises(UnknownBatch):
        schedule.session.decode((Handle(10**9),), ())


def test_error_changes_nothing(schedule: Schedule) -> None:
    """After a refused verb the batch goes on as if the verb had not been called."""
    wanted, id = alone(schedule, PROMPTS[0]), fresh()
    schedule.step(schedule.request(id, PROMPTS[0], 9))
    bad: list[tuple[type[BackendError], tuple[Grant, ...]]] = [
        (InvalidRequest, (Grant(id, 2),)),
        (InvalidRequest, (Grant(id, 1, ((10**6,),)),)),
        (InvalidRequest, (Grant(id, 1), Grant(id, 1))),
        (UnknownRequest, (Grant(fresh(), 1),)),
    ]
    for kind, grants in bad:
        with pytest.raises(kind):
            schedule.session.decode((schedule.handle,), grants)
    with pytest.raises(UnknownRequest):
        schedule.session.filter(schedule.handle, (fresh(),))
    while len(schedule.tokens[id]) < NEW_TOKENS:
        schedule.step()
    assert schedule.tokens[id] == wanted


def test_filter_keeps_and_clears(schedule: Schedule) -> None:
    """filter keeps the named rows with their texts; keeping none leaves the empty batch."""
    wanted, first, second = alone(schedule, PROMPTS[1]), fresh(), fresh()
    schedule.step(schedule.request(first, PROMPTS[0], 9), schedule.request(second, PROMPTS[1], 5))
    schedule.handle = schedule.session.filter(schedule.handle, (second,))
    while len(schedule.tokens[second]) < NEW_TOKENS:
        schedule.step()
    assert schedule.tokens[second] == wanted and len(schedule.tokens[first]) == 1
    assert schedule.session.filter(schedule.handle, ()) == EMPTY


def test_blocks_of_a_dropped_row_serve_at_once(schedule: Schedule) -> None:
    """Blocks may be granted again in the verb right after the one that dropped their row, even before its step is read."""
    wanted, gone, next = alone(schedule, PROMPTS[2]), fresh(), fresh()
    request = schedule.request(gone, PROMPTS[0], 9)
    step = schedule.session.prefill((request,), EMPTY, ())
    schedule.session.filter(step.handle, ())
    reused = replace(schedule.request(next, PROMPTS[2], 13), blocks=((*request.blocks[0], 60),))
    schedule.step(reused)
    while len(schedule.tokens[next]) < NEW_TOKENS:
        schedule.step()
    assert schedule.tokens[next] == wanted


def test_merge(schedule: Schedule) -> None:
    """decode merges its distinct batches into one; the same batch twice is refused."""
    ids = [fresh(), fresh()]
    handles = []
    for id, prompt in zip(ids, PROMPTS, strict=False):
        step = schedule.session.prefill((schedule.request(id, prompt, len(prompt)),), EMPTY, ())
        schedule.session.rows(step)
        handles.append(step.handle)
    with pytest.raises(InvalidRequest):
        schedule.session.decode((handles[0], handles[0]), ())
    step = schedule.session.decode(tuple(handles), ())
    assert [row.request_id for row in schedule.session.rows(step).rows] == ids
    assert schedule.session.clear(step.handle).count == 2


def test_steps_are_read_once(schedule: Schedule) -> None:
    """Reading a step again, or one that was never launched, is refused."""
    step = schedule.session.prefill((schedule.request(fresh(), PROMPTS[0], 9),), EMPTY, ())
    schedule.session.rows(step)
    for wrong in (step, Step(10**9, EMPTY)):
        with pytest.raises(InvalidRequest):
            schedule.session.rows(wrong)


def test_default_grants_and_sitting_out(schedule: Schedule) -> None:
    """Without a grant a row runs once its prompt is complete and waits before; a take of 0 sits the step out."""
    id = fresh()
    schedule.step(schedule.request(id, PROMPTS[0], 4))
    schedule.step()
    assert schedule.tokens[id] == []
    schedule.step(grants=(Grant(id, 5),))
    schedule.step(grants=(Grant(id, 0),))
    assert len(schedule.tokens[id]) == 1
    schedule.step()
    assert len(schedule.tokens[id]) == 2


def test_refusals(schedule: Schedule) -> None:
    """What was not declared is Unsupported, nonsense InvalidRequest, too much CapacityExceeded; nothing stays behind."""
    base = schedule.request(fresh(), PROMPTS[0], 9)
    long = tuple(i % VOCAB for i in range(97))
    cases: list[tuple[type[BackendError], object]] = [
        (Unsupported, replace(base, adapter="a")),
        (Unsupported, replace(base, media=(b"x",))),
        (Unsupported, replace(base, masked=True)),
        (InvalidRequest, replace(base, tokens=(1, VOCAB), take=2, prompt_len=2)),
        (InvalidRequest, replace(base, tokens=(1, -1), take=2, prompt_len=2)),
        (InvalidRequest, replace(base, tokens=(), take=0, prompt_len=0)),
        (InvalidRequest, replace(base, take=10)),
        (InvalidRequest, replace(base, cached=9)),
        (InvalidRequest, replace(base, blocks=((),))),
        (InvalidRequest, replace(base, blocks=((0,),))),
        (InvalidRequest, replace(base, blocks=((1,), (1,)))),
        (InvalidRequest, replace(base, sampling=Sampling(do_sample=True, temperature=0.0))),
        (InvalidRequest, replace(base, sampling=Sampling(do_sample=True, top_p=0.0))),
        (InvalidRequest, replace(base, sampling=Sampling(repetition_penalty=float("nan")))),
        (CapacityExceeded, replace(base, tokens=long, prompt_len=97, blocks=(tuple(range(1, 8)),), take=97)),
    ]
    for kind, request in cases:
        with pytest.raises(kind) as caught:
            schedule.session.prefill((request,), EMPTY, ())  # type: ignore[arg-type]
        assert "\n" not in str(caught.value) and caught.value.request_ids == (base.id,)
    with pytest.raises(InvalidRequest):
        schedule.session.prefill((base, base), EMPTY, ())
    assert schedule.session.clear(None).count == 0


def test_step_limits(schedule: Schedule) -> None:
    """More rows or tokens in a step than promised are refused."""
    nine = tuple(schedule.request(fresh(), (1, 2, 3), 3) for _ in range(9))
    with pytest.raises(CapacityExceeded):
        schedule.session.prefill(nine, EMPTY, ())
    prompt = tuple(range(70))
    two = tuple(replace(schedule.request(fresh(), prompt, 70), blocks=(tuple(range(1 + 5 * i, 6 + 5 * i)),)) for i in range(2))
    with pytest.raises(CapacityExceeded):
        schedule.session.prefill(two, EMPTY, ())


def test_prefix_reuse(schedule: Schedule) -> None:
    """A request may start behind blocks that another row of the same prefix has filled."""
    prompt = tuple(range(40, 80))
    wanted, first, second = alone(schedule, prompt, 4), fresh(), fresh()
    request = schedule.request(first, prompt, 40)
    schedule.step(request)
    shared = replace(schedule.request(second, prompt, 8), cached=32, blocks=((*request.blocks[0][:2], 50, 51),))
    schedule.step(shared)
    while len(schedule.tokens[second]) < 4:
        schedule.step()
    assert schedule.tokens[second] == wanted


def test_continued_request(schedule: Schedule) -> None:
    """A request goes on from its prompt and the tokens made so far as if it had never stopped, sampled or not."""
    how = Sampling(do_sample=True, temperature=1.3, top_k=50, seed=7, repetition_penalty=1.2, frequency_penalty=0.3)
    whole, rest = fresh(), fresh()
    schedule.step(replace(schedule.request(whole, PROMPTS[0], 9), sampling=how))
    while len(schedule.tokens[whole]) < 8:
        schedule.step()
    so_far = (*PROMPTS[0], *schedule.tokens[whole][:3])
    continued = replace(schedule.request(rest, so_far, len(so_far)), sampling=how, prompt_len=9)
    schedule.step(continued)
    while len(schedule.tokens[rest]) < 5:
        schedule.step()
    assert schedule.tokens[rest][:5] == schedule.tokens[whole][3:8]


def test_prompt_logprobs_in_chunks(schedule: Schedule) -> None:
    """Chunks yield together what one step yields, with the leading None once."""
    session, want = schedule.session, OutputOptions(prompt_logprobs=True)
    step = session.prefill((replace(schedule.request(fresh(), PROMPTS[0], 9), want=want),), EMPTY, ())
    whole = session.rows(step).rows[0].prompt_logprobs
    id = fresh()
    step = session.prefill((replace(schedule.request(id, PROMPTS[0], 4), want=want),), EMPTY, ())
    parts = session.rows(step).rows[0].prompt_logprobs
    step = session.decode((step.handle,), (Grant(id, 5),))
    parts += session.rows(step).rows[0].prompt_logprobs
    assert len(whole) == 9 and whole[0] is None and parts[0] is None
    assert parts[1:] == pytest.approx(whole[1:], abs=1e-4)


def poison_block_1(runner: Any) -> None:
    """Leave NaN in the first layer's block 1, whichever way the runner keeps its cache."""
    if hasattr(runner.cache, "layers"):
        runner.cache.layers[0].keys[1] = runner.cache.layers[0].values[1] = float("nan")
    else:
        size = runner.cache_block_bytes(16)
        ctypes.memset(runner.packed.layers[0].cache + size, 0xFF, size // len(runner.packed.layers))


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_row_fault_ends_one_row(llama: Path, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose forward pass gives NaN fails; its mate goes on, and so does the next owner of its blocks."""
    monkeypatch.setenv("TGI_CPU_KERNELS", kernels)
    session, capacity = open_cpu(llama, WarmupPlan(max_rows=4, max_row_tokens=64, num_blocks=16))
    run = Schedule(session, capacity)
    wanted = alone(run, PROMPTS[1])
    runner = session.implementation.runner
    run.step(run.request(1, PROMPTS[0], 9), run.request(2, PROMPTS[1], 5))
    poison_block_1(runner)
    step = session.decode((run.handle,), ())
    first, second = session.rows(step).rows
    assert first.fault is not None and first.fault.kind is RowFaultKind.NAN and second.fault is None
    run.tokens[2] += second.tokens
    run.handle = session.filter(step.handle, (2,))
    request = replace(run.request(3, PROMPTS[1], 5), blocks=((1, 12),))
    run.step(request)
    while len(run.tokens[3]) < NEW_TOKENS:
        run.step(grants=(Grant(2, 0),) if len(run.tokens[2]) >= NEW_TOKENS else ())
    assert run.tokens[2] == wanted and run.tokens[3] == wanted


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (OutOfMemory("no room"), OutOfMemory),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (TypeError("None"), BackendBug),
    ],
)
def test_failed_step_kills_its_batch(raised: Exception, seen: type[BackendError], llama: Path) -> None:
    """An error that a step ends with comes from rows, and its handle is dead; the session lives."""
    session, capacity = open_cpu(llama, WarmupPlan(max_rows=4, max_row_tokens=64, num_blocks=16))
    run = Schedule(session, capacity)
    runner = session.implementation.runner
    works = runner.run

    def fail(*args: object) -> None:
        raise raised

    step = session.prefill((run.request(1, PROMPTS[0], 9),), EMPTY, ())
    runner.run = fail
    with pytest.raises(seen):
        session.rows(step)
    runner.run = works
    with pytest.raises(UnknownBatch):
        session.decode((step.handle,), ())
    assert len(alone(run, PROMPTS[1])) == NEW_TOKENS


class OnlyEven:
    """A grammar that allows even tokens, and for request 5 nothing."""

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """One row of packed bits per request."""
        words = np.full((len(rows), VOCAB // 32), 0x55555555, np.uint32)
        words[[i for i, row in enumerate(rows) if row.request_id == 5]] = 0
        return words.astype("<u4").tobytes()


def test_masks(llama: Path) -> None:
    """A masked row only makes tokens that its mask allows; a mask without any is that row's fault."""
    session, capacity = open_cpu(llama, masks=OnlyEven())
    run = Schedule(session, capacity)
    run.step(replace(run.request(1, PROMPTS[0], 9), masked=True), run.request(2, PROMPTS[1], 5))
    for _ in range(8):
        run.step()
    assert all(token % 2 == 0 for token in run.tokens[1])
    assert any(token % 2 for token in run.tokens[2])
    step = session.prefill((replace(run.request(5, PROMPTS[2], 13), masked=True),), EMPTY, ())
    fault = session.rows(step).rows[0].fault
    assert fault is not None and fault.kind is RowFaultKind.MASK


def test_warmup(llama: Path) -> None:
    """A session warms up once, before any verb; what does not fit is refused with the numbers."""
    session, _ = open_cpu(llama)
    with pytest.raises(InvalidRequest):
        session.warmup(WarmupPlan(), silent)
    with pytest.raises(OutOfMemory, match=r"KV cache: .* blocks .* bytes"):
        open_cpu(llama, WarmupPlan(num_blocks=10**9))
    with pytest.raises(OutOfMemory, match="KV cache"):
        open_cpu(llama, WarmupPlan(), memory_fraction=0.0)


def test_capacity_names_its_memory(opened: tuple[Session, Capacity]) -> None:
    """The shares that the plan table shows add up from weights and cache."""
    names = {memory.name: memory.num_bytes for memory in opened[1].memory}
    assert {"weights (float32)", "kv cache", "activations", "reserve"} == set(names) and names["weights (float32)"] > 0
    assert names["kv cache"] == 64 * 16 * 4 * 2 * (16 + 16) * 4


def test_close_is_idempotent(llama: Path) -> None:
    """close may come twice, and nothing runs after it."""
    session, _ = open_cpu(llama)
    session.close()
    session.close()
    with pytest.raises(InvalidRequest):
        session.decode((Handle(1),), ())
