"""Faults on purpose: when they come, what they leave, and that nobody gets them unasked."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.device import alone, device, quiet, request
from tests.scheduler.test_loop import collect
from tests.serve.process import run, served
from tgi_core.backend import (
    EMPTY,
    BackendBug,
    BackendError,
    CapacityExceeded,
    CompileFailed,
    DeviceBusy,
    DeviceLost,
    InvalidRequest,
    OutOfMemory,
    Request,
    RowFaultKind,
    Step,
    UnknownBatch,
    WarmupPlan,
)
from tgi_core.backend.fault_schedule import KINDS, Rule, When, parse_schedule
from tgi_core.backend.faults import FaultInjector, inject
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.client.child import open_child_shard
from tgi_core.model_files import DEMO
from tgi_core.scheduler import RequestFailed, SchedulerLoop
from tgi_core.tokenizer import Tokenizer

ERRORS = {
    "oom": OutOfMemory,
    "capacity": CapacityExceeded,
    "compile": CompileFailed,
    "invalid": InvalidRequest,
    "busy": DeviceBusy,
    "lost": DeviceLost,
    "crash": BackendBug,
    "none": BackendBug,
}


def opened(text: str) -> tuple[Session, FaultInjector]:
    """A warm reference session that fails by a schedule."""
    session = Session(ReferenceSession(), "reference")
    injector = inject(session, parse_schedule(text))
    session.warmup(WarmupPlan(num_blocks=64, block_size=4), quiet)
    return session, injector


def start(session: Session, id: int) -> Step:
    """A request of two tokens, in two blocks of its own."""
    return session.prefill((Request(id, (1, 2), 2, 0, ((2 * id, 2 * id + 1),), 2),), EMPTY, ())


@pytest.mark.parametrize("kind", sorted(set(ERRORS) - {"none"}))
def test_an_error_from_a_verb_changed_nothing(kind: str) -> None:
    """The verb raises the contract's error of that kind; the same call succeeds afterwards, and its tokens are right."""
    session, _ = opened(f"{kind}:at=1+3")
    with pytest.raises(ERRORS[kind]):
        start(session, 1)
    first = start(session, 1)
    with pytest.raises(ERRORS[kind]):
        session.decode((first.handle,), ())
    second = session.decode((first.handle,), ())
    plain, _ = opened("oom:at=99")
    one = start(plain, 1)
    two = plain.decode((one.handle,), ())
    for step, expected in ((first, one), (second, two)):
        assert session.rows(step).rows == plain.rows(expected).rows


@pytest.mark.parametrize("kind", sorted(set(ERRORS) - {"none"}))
@pytest.mark.parametrize("when", ["rows", "late"])
def test_an_error_from_rows_kills_what_was_made_of_the_step(kind: str, when: str) -> None:
    """With two steps in flight: reading the first raises, so does the second; their handles are dead; another batch lives on."""
    session, _ = opened(f"{kind}:at=2,when={when}")
    other = start(session, 5)
    first = start(session, 1)
    if when == "late":
        with pytest.raises(UnknownBatch):
            session.decode((first.handle,), ())
    else:
        second = session.decode((first.handle,), ())
    session.rows(other)
    with pytest.raises(ERRORS[kind]):
        session.rows(first)
    if when == "rows":
        with pytest.raises(UnknownBatch):
            session.decode((second.handle,), ())
        with pytest.raises(ERRORS[kind]):
            session.rows(second)
    assert session.rows(session.decode((other.handle,), ())).rows[0].tokens
    assert session.clear(None).count == 1, "only the other batch is left"


def test_a_filtered_batch_dies_with_its_step() -> None:
    """What remains of a batch after a filter was made of the step too."""
    session, _ = opened("oom:at=1,when=rows")
    step = session.prefill(tuple(Request(id, (1, 2), 2, 0, ((id,),), 2) for id in (1, 2)), EMPTY, ())
    kept = session.filter(step.handle, (2,))
    with pytest.raises(OutOfMemory):
        session.rows(step)
    with pytest.raises(UnknownBatch):
        session.decode((kept,), ())


@pytest.mark.parametrize("when", ["verb", "rows"])
def test_none_in_place_of_a_result(when: str) -> None:
    """It is the backend's bug, by the name of the hook."""
    session, _ = opened(f"none:at=1,when={when}")
    with pytest.raises(BackendBug, match="returned NoneType"):
        session.rows(start(session, 1))


@pytest.mark.parametrize("kind", [*(kind.value for kind in RowFaultKind), "token"])
@pytest.mark.parametrize(("row", "victims"), [("first", {1}), ("last", {3}), ("any", {1, 2, 3})])
def test_a_fault_of_a_row_is_one_rows(kind: str, row: str, victims: set[int]) -> None:
    """One row of the step has failed, or has a token that does not exist; the others are as they were."""
    session, _ = opened(f"{kind}:at=1,row={row}")
    step = session.prefill(tuple(Request(id, (id,), 1, 0, ((id,),), 1) for id in (1, 2, 3)), EMPTY, ())
    bad = [item for item in session.rows(step).rows if item.fault is not None or not 0 <= item.tokens[0] < 256]
    assert len(bad) == 1 and bad[0].request_id in victims
    assert (bad[0].fault is None) == (kind == "token")


def test_a_slow_step_is_right() -> None:
    """It only takes its time."""
    session, injector = opened("slow:at=1,ms=1")
    assert session.rows(start(session, 1)).rows[0].tokens and injector.injected == {"slow": 1}


@settings(deadline=None, max_examples=20)
@given(kind=st.sampled_from(KINDS), p=st.floats(0.01, 0.3), seed=st.integers(0, 2**40))
def test_chance_is_a_function_of_the_steps_number(kind: str, p: float, seed: int) -> None:
    """The same seed meets the same steps, about as many of them as asked for."""
    rule = Rule(kind, p=p, seed=seed)
    hits = [step for step in range(1, 1001) if rule.hits(step)]
    assert hits == [step for step in range(1, 1001) if Rule(kind, p=p, seed=seed).hits(step)]
    assert abs(len(hits) - 1000 * p) < 6 * (1000 * p * (1 - p)) ** 0.5 + 1


def test_the_syntax() -> None:
    """Rules between semicolons, each with its own seed where none is given."""
    rules = parse_schedule("oom:p=0.01,seed=3; nan:every=50,row=last;capacity:at=2+9,when=rows;slow:every=7,ms=2.5")
    assert rules == (
        Rule("oom", p=0.01, seed=3),
        Rule("nan", every=50, seed=1, row="last"),
        Rule("capacity", at=(2, 9), seed=2, when=When.ROWS),
        Rule("slow", every=7, seed=3, ms=2.5),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rule"),
        ("zoom:p=1", "'zoom' is not a kind of fault; choose from oom, "),
        ("oom", "oom: say when, with p=, at= or every="),
        ("oom:p=1.5", "p=1.5: must be from 0 to 1"),
        ("oom:p=many", "p=many: could not convert"),
        ("oom:at=0", "at=0: must be a whole number from 1"),
        ("oom:every=2,when=soon", "when=soon: choose from verb, rows, late"),
        ("oom:every=2,row=first", "oom has no 'row'; it has p, at, every, seed, when"),
        ("nan:every=2,when=rows", "nan has no 'when'"),
        ("nan:every=2,ms=3", "nan has no 'ms'"),
        ("slow:every=2,ms=-1", "ms=-1: must be at least 0"),
    ],
)
def test_mistakes_are_named(text: str, said: str) -> None:
    """What is wrong, in which rule, and what would be right."""
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_schedule(text)


def test_it_is_announced(caplog: pytest.LogCaptureFixture, demo_tokenizer: Tokenizer) -> None:
    """A warning when it is switched on, and one for each fault; none without it."""
    with caplog.at_level(logging.WARNING, logger="tgi_core.backend"):
        one = device(demo_tokenizer)
        one.scheduler.add(request((1, 2), 4))
        one.run()
        assert not caplog.records
        session, _ = opened("oom:at=1")
        with pytest.raises(BackendError):
            start(session, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "FAULTS ARE INJECTED into backend reference, by 1 rules: not for production",
        "injected fault: oom at step 1",
    ]


def test_a_server_with_faults() -> None:
    """`tgi serve --inject-faults` says so, and answers as one without: the client sees a pause. `--help` does not mention it."""
    with served("--backend", "reference", "--inject-faults", "oom:at=3;oom:at=6,when=rows") as server:
        asked = {"inputs": "Hi", "parameters": {"max_new_tokens": 12}}
        faulty = httpx.post(f"{server.url}/generate", json=asked, timeout=30)
    assert "FAULTS ARE INJECTED" in "".join(server.lines) and "injected fault: oom at step 3" in "".join(server.lines)
    with served("--backend", "reference") as server:
        assert httpx.post(f"{server.url}/generate", json=asked, timeout=30).text == faulty.text and faulty.status_code == 200
    assert "inject" not in run("serve", "--help").stdout


def test_a_mistake_ends_the_start() -> None:
    """One line that names the flag, before the model is read, in the server and in a shard of its own."""
    for command in ("serve", "shard"):
        result = run(command, "--inject-faults", "oom", "/not/there")
        assert result.returncode == 1 and result.stderr.startswith("tgi: error: --inject-faults oom: oom: say when"), (
            result.stderr
        )


def test_nothing_of_it_is_loaded_by_default() -> None:
    """Serving without the setting does not even import the injector."""
    code = "import sys; import tgi_core.cli.serving, tgi_core.cli.shard; sys.exit('tgi_core.backend.faults' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0


async def test_a_shard_with_faults(demo_tokenizer: Tokenizer, capfd: pytest.CaptureFixture[str]) -> None:
    """`tgi shard` takes the setting too: its refusals, losses and row faults come over the wire, and requests go on as in process."""
    schedule = "oom:at=3;capacity:at=5,when=rows;oom:at=8,when=late;nan:at=12,row=last"
    arguments = ["--backend", "reference", "--inject-faults", schedule]
    child = await open_child_shard(DEMO, arguments, lambda _: WarmupPlan(max_row_tokens=256), quiet)
    loop = SchedulerLoop(child.shard, child.info, child.capacity)
    task = asyncio.create_task(loop.run())
    asked = [request((index, 2), 12, seed=index) for index in range(4)]
    try:
        results = await asyncio.gather(*(collect(loop.submit(one)) for one in asked), return_exceptions=True)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await child.shard.close()
    failed = [result for result in results if isinstance(result, RequestFailed)]
    assert [error.kind for error in failed] == [RowFaultKind.NAN]
    for one, result in zip(asked, results, strict=True):
        assert result in failed or result == alone(demo_tokenizer, one)
    said = capfd.readouterr().err
    assert "FAULTS ARE INJECTED" in said and said.count("injected fault: ") == 4
