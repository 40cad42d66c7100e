"""Rows that the device samples from processed logits, one step ahead, in Triton's interpreter; see `test_processing.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton
from torch import Tensor

from tests.engine.ahead.late import LateQueue
from tests.engine.ahead.opened import PLAN, Ahead, open_on
from tests.engine.ahead.test_tokens import Chain
from tests.engine.tiny_models import PROMPTS, save_tiny
from tgi_core.backend import EMPTY, Grant, MaskRow, OutputOptions, RowFaultKind, Sampling, SamplingField
from tgi_core.backend.session import Session
from tgi_core.engine.ahead.sampling import TorchSampler
from tgi_core.engine.device_queue import StepSampler
from tgi_core.engine.logits_processing import ProcessedInputs
from tgi_core.engine.triton.sampling import TritonSampler

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]

KINDS: tuple[dict[str, Any], ...] = (
    {"sampling": Sampling(repetition_penalty=1.4, frequency_penalty=0.5)},
    {"sampling": Sampling(do_sample=True, seed=7, presence_penalty=0.8, top_k=40, top_p=0.9)},
    {"sampling": Sampling(do_sample=True, seed=8, typical_p=0.6), "want": OutputOptions(top_n=4)},
    {"masked": True},
    {"masked": True, "sampling": Sampling(do_sample=True, seed=9, repetition_penalty=1.2), "want": OutputOptions(top_n=2)},
    {"sampling": Sampling(logit_bias=((5, 4.0), (11, -3.0))), "want": OutputOptions(logprobs=False)},
    {},
    {"sampling": Sampling(do_sample=True, seed=3, watermark=2.0, watermark_gamma=0.25)},
)


class Sampler(TorchSampler):
    """Plain rows by torch's operators, which can be recorded, all others by the kernels."""

    processes = True

    def choose_processed(
        self, logits: Tensor, inputs: ProcessedInputs, counts: Tensor, newest: Tensor, results: Tensor, typical: bool
    ) -> None:
        """By the kernels."""
        TritonSampler().choose_processed(logits, inputs, counts, newest, results, typical)


class Queue(LateQueue):
    """A late device with that sampler."""

    def sampler(self) -> StepSampler:
        """Its sampler."""
        return Sampler()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"))


def _run(session: Session) -> Ahead:
    """Rows of all kinds: they join in two steps, two sit a step out, and two leave; the last steps have none that the host samples."""
    run = Ahead(session)
    rows = [run.request(id, PROMPTS[id % 3], 24, **fields) for id, fields in enumerate(KINDS, 1)]
    run.launch(*rows[:5])
    run.launch(*rows[5:])
    for _ in range(3):
        run.launch()
    run.launch(grants=(Grant(1, 0), Grant(4, 0)))
    run.launch()
    for left in ((1, 3, 4, 5, 6, 7, 8), (1, 3, 4, 5, 6, 7)):
        run.handle = run.session.filter(run.handle, left)
        for _ in range(5):
            run.launch()
    run.finish()
    return run


@pytest.mark.parametrize("graphs", [None, "switched off"])
def test_kinds_of_rows(llama: Path, graphs: str | None) -> None:
    """Rows get the tokens, logprobs and top tokens of lock step, replayed or not."""
    wanted = _run(open_on(None, llama, masks=Chain())[0])
    found = _run(open_on(Queue(graphs=graphs), llama, masks=Chain())[0])
    for id in range(1, len(KINDS) + 1):
        assert found.tokens(id) == wanted.tokens(id)
        for mine, theirs in zip(found.of(id), wanted.of(id), strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
            assert [[top.id for top in tops] for tops in mine.top] == [[top.id for top in tops] for tops in theirs.top]


def test_after_drafts(llama: Path) -> None:
    """Tokens that the host sampled, after drafts, are counted for the penalties of the steps that follow."""
    penalized = [kind for kind in KINDS if kind.get("masked") is None][:2]
    tokens = []
    for queue in (None, Queue()):
        run = Ahead(open_on(queue, llama, replace(PLAN, draft=2))[0])
        run.launch(*(run.request(id, PROMPTS[id], 24, **kind) for id, kind in enumerate(penalized, 1)))
        for _ in range(3):
            run.launch()
        run.finish()
        if queue is not None:
            drafts = tokens[0][0][4], tokens[0][1][4] + 1  # right, and wrong
            run.launch(grants=tuple(Grant(id, 2, drafts=(draft,)) for id, draft in enumerate(drafts, 1)))
            run.finish()
        for _ in range(6):
            run.launch()
        run.finish()
        tokens.append((run.tokens(1), run.tokens(2)))
    (first, second), found = tokens
    assert (len(found[0]), len(found[1])) == (12, 11)
    assert found[0][:10] == first and found[1][:10] == second


def test_nothing_is_waited_for(llama: Path) -> None:
    """Launching a step waits for no step that has not been read, with penalties and masks too."""
    queue = Queue()
    session, _ = open_on(queue, llama, masks=Chain())
    assert SamplingField.REPETITION_PENALTY in session.capabilities().sampling
    run = Ahead(session)
    run.launch(*(run.request(id, PROMPTS[id % 3], **KINDS[id]) for id in (0, 2, 3)))
    for _ in range(4):
        run.launch()
        run.read()
        before = queue.waiting
        run.launch()
        assert queue.waiting > before
        run.read()
    run.finish()


def test_masks_of_unread_steps(llama: Path) -> None:
    """A core that launches three steps before it reads one gets the same tokens: masks wait for the tokens that they follow from."""
    tokens = []
    for queue in (None, Queue()):
        session, _ = open_on(queue, llama, masks=Chain())
        run = Ahead(session)
        steps = [session.prefill((run.request(1, PROMPTS[0], masked=True),), EMPTY, ())]
        for _ in range(4):
            steps.append(session.decode((steps[-1].handle,), ()))
            if queue is None:
                tokens.append(session.rows(steps[-2]).rows[0].tokens)
        if queue is None:
            tokens.append(session.rows(steps[-1]).rows[0].tokens)
    assert [session.rows(step).rows[0].tokens for step in steps] == tokens


class Nothing:
    """A grammar that allows nothing for one row, with a mask of the wrong size for another."""

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """No bits."""
        return bytes(64 * len(rows)) if len(rows) > 1 else b"1"


@pytest.mark.parametrize("count", [1, 2])
def test_masks_that_allow_nothing(llama: Path, count: int) -> None:
    """Such a row fails with that reason, and a row beside it gets its tokens."""
    session, _ = open_on(Queue(), llama, masks=Nothing())
    run = Ahead(session)
    run.launch(*(run.request(id, PROMPTS[0], masked=id <= count) for id in (1, 2, 3)))
    run.launch()
    run.finish()
    fault = run.of(1)[0].fault
    assert fault is not None and fault.kind is RowFaultKind.MASK and len(run.of(1)) == 1
    assert len(run.tokens(3)) == 2


def test_counts_are_planned(llama: Path) -> None:
    """The memory of counted tokens is part of the plan."""
    _, capacity = open_on(Queue(), llama)
    assert {share.name: share.num_bytes for share in capacity.memory}["token counts"] == 10 * 512 * 4
