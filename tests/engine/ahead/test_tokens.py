"""One step ahead, the tokens are those of a session that takes a step at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.ahead.late import LateQueue
from tests.engine.ahead.opened import Ahead, open_on
from tests.engine.tiny_models import PROMPTS, VOCAB, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import Grant, MaskRow, OutputOptions, Sampling
from tgi_core.backend.session import Session

DRAWN = Sampling(do_sample=True, temperature=1.4, seed=3)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"sampling": DRAWN},
    "top-k": {"sampling": Sampling(do_sample=True, top_k=5, seed=4)},
    "top-p": {"sampling": Sampling(do_sample=True, top_p=0.7, temperature=2.0, seed=5)},
    "penalized": {"sampling": Sampling(repetition_penalty=1.4, frequency_penalty=0.5)},
    "top tokens": {"want": OutputOptions(top_n=3)},
    "prompt logprobs": {"want": OutputOptions(prompt_logprobs=True)},
    "masked": {"masked": True},
}


class Chain:
    """A grammar in which a token must be odd after an even one, and even after an odd one."""

    def __init__(self) -> None:
        self.told: dict[int, list[int]] = {}

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Bits for each row, from what it has been told."""
        packed = b""
        for row in rows:
            told = self.told.setdefault(row.request_id, [])
            told += row.tokens
            odd = len(told) % 2 == 0
            packed += np.full(VOCAB // 32, 0xAAAAAAAA if odd else 0x55555555, np.uint32).astype("<u4").tobytes()
        return packed


def mixed_run(session: Session) -> Ahead:
    """Rows of all kinds side by side: they join in two steps, and decode together."""
    run = Ahead(session)
    rows = [run.request(id, PROMPTS[id % 3], **fields) for id, fields in enumerate(KINDS.values(), 1)]
    run.launch(*rows[:4])
    run.launch(*rows[4:])
    for _ in range(12):
        run.launch()
    run.finish()
    return run


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2", "mixtral"])
@pytest.mark.parametrize("graphs", [None, "switched off"])
def test_models(model_type: str, graphs: str | None, tmp_path: Path) -> None:
    """Over chunks, joins, mixed steps and a row that leaves, through transformers' modules, replayed or not."""
    model = save_tiny(model_type, tmp_path)
    wanted = ragged_schedule(*open_cpu(model, dtype="float32"))
    assert ragged_schedule(*open_on(LateQueue(graphs=graphs), model)) == wanted


@pytest.mark.parametrize("graphs", [None, "switched off"])
@pytest.mark.parametrize("eager", [False, True])
def test_kinds_of_rows(llama: Path, graphs: str | None, eager: bool) -> None:
    """Rows that the device samples, and rows that the host does, get what they get in lock step, with their logprobs."""
    wanted = mixed_run(open_on(None, llama, masks=Chain())[0])
    found = mixed_run(open_on(LateQueue(graphs=graphs, eager=eager), llama, masks=Chain())[0])
    for id in range(1, len(KINDS) + 1):
        assert found.tokens(id) == wanted.tokens(id) and len(found.tokens(id)) >= 13
        for mine, theirs in zip(found.of(id), wanted.of(id), strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
            assert [[top.id for top in tops] for tops in mine.top] == [[top.id for top in tops] for tops in theirs.top]
            assert mine.prompt_logprobs == pytest.approx(theirs.prompt_logprobs, abs=1e-5)


def test_every_number_of_rows(llama: Path) -> None:
    """Steps of one to eight rows, padded to what was captured, each with rows that leave from the middle."""
    tokens = []
    for queue in (None, LateQueue()):
        run = Ahead(open_on(queue, llama)[0])
        for id in range(1, 9):
            run.launch(run.request(id, PROMPTS[id % 3][:5]))
            run.launch()
        for id in (4, 1, 8, 5, 2, 7):
            keep = [other for other in range(1, 9) if other != id and any(row.request_id == other for row in run.rows[-1].rows)]
            run.handle = run.session.filter(run.handle, tuple(keep))
            run.launch()
            run.launch()
            run.finish()
        tokens.append({id: run.tokens(id) for id in range(1, 9)})
    assert tokens[0] == tokens[1]


def test_sitting_out(llama: Path) -> None:
    """A row that sits a step out goes on from its newest token, which the host had not read when it sat down."""
    tokens = []
    for queue in (None, LateQueue()):
        run = Ahead(open_on(queue, llama)[0])
        run.launch(run.request(1, PROMPTS[0]), run.request(2, PROMPTS[1]))
        for step in range(8):
            run.launch(grants=(Grant(1 + step % 2, 0),))
        run.finish()
        tokens.append((run.tokens(1), run.tokens(2)))
    assert tokens[0] == tokens[1] and len(tokens[0][0]) == 5
