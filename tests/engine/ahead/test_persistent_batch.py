"""Long runs of decode steps, whose inputs are prepared from those of the step before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.ahead.late import LateQueue
from tests.engine.ahead.opened import Ahead, open_on
from tests.engine.tiny_models import PROMPTS
from tgi_core.backend import Grant, OutOfMemory, Request, Sampling


def _growing(run: Ahead, id: int, prompt: tuple[int, ...], sampling: Sampling) -> Request:
    """A request with no more blocks than its prompt needs."""
    return run.request(id, prompt, 0, sampling=sampling)


def _long_run(queue: LateQueue | None, model: Path) -> dict[int, list[int]]:
    """Rows of several lengths, drawn and greedy, whose blocks are granted one by one; one leaves in the middle, and one joins."""
    run = Ahead(open_on(queue, model)[0])
    samplings = [Sampling(do_sample=True, temperature=1.5, seed=id) if id % 3 else Sampling() for id in range(5)]
    lengths = {id: len(PROMPTS[id % 3]) for id in range(1, 4)}
    run.launch(*(_growing(run, id, PROMPTS[id % 3], samplings[id]) for id in lengths))

    def decode(steps: int) -> None:
        for _ in range(steps):
            grants = []
            for id, length in lengths.items():
                if length % 16 == 0:
                    grants.append(Grant(id, 1, ((run.next_block,),)))
                    run.next_block += 1
                lengths[id] += 1
            run.launch(grants=tuple(grants))

    decode(25)
    run.handle = run.session.filter(run.handle, (1, 3))
    del lengths[2]
    decode(20)
    grants = tuple(Grant(id, 0) for id in lengths)
    run.launch(_growing(run, 4, PROMPTS[0], samplings[4]), grants=grants)
    lengths[4] = len(PROMPTS[0])
    decode(20)
    run.finish()
    return {id: run.tokens(id) for id in range(1, 5)}


def test_long_runs(llama: Path) -> None:
    """Rows get the tokens of lock step, with graphs and without, over many blocks and more positions than are drawn ahead."""
    wanted = _long_run(None, llama)
    assert [len(tokens) for tokens in wanted.values()] == [66, 26, 66, 21]
    assert _long_run(LateQueue(), llama) == wanted
    assert _long_run(LateQueue(graphs="switched off"), llama) == wanted


def test_after_a_failed_step(llama: Path) -> None:
    """A batch that failed in the middle of a run leaves nothing to the rows that take its slots."""
    queue = LateQueue()
    session, _ = open_on(queue, llama)
    run = Ahead(session)
    run.launch(run.request(1, PROMPTS[0]), run.request(2, PROMPTS[1]))
    for _ in range(4):
        run.launch()
    run.finish()
    queue.breaks.append(MemoryError())
    run.launch()
    with pytest.raises(OutOfMemory):
        run.read()
    after = Ahead(session)
    after.next_block = 20
    found = []
    for each in (after, Ahead(open_on(None, llama)[0])):
        each.launch(each.request(3, PROMPTS[0]), each.request(4, PROMPTS[1]))
        for _ in range(6):
            each.launch()
        each.finish()
        found.append((each.tokens(3), each.tokens(4)))
    assert found[0] == found[1]
