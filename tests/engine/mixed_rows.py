"""Rows of all lengths, greedy and seeded, that join in many ways: each must make the tokens that it makes alone."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.tiny_models import PROMPTS, VOCAB, Schedule
from tgi_core.backend import Capacity, Grant, Request, Sampling
from tgi_core.backend.session import Session

NEW = 4
"""Tokens that each row makes."""


class Rows(Schedule):
    """Requests of which every other one is sampled with a seed."""

    def row(self, number: int, take: int | None = None) -> Request:
        """Request `number`, whose prompt and seed follow from the number."""
        prompt = tuple((number * 37 + place * 11) % (VOCAB - 2) + 2 for place in range(1 + number * 5 % 13))
        request = self.request(number, prompt, take or len(prompt))
        sampling = Sampling(do_sample=True, temperature=1.3, top_p=0.9, seed=number) if number % 2 else Sampling()
        return replace(request, sampling=sampling)

    def until_done(self) -> None:
        """Go on with all rows until each has made enough tokens."""
        while any(len(made) < NEW for made in self.tokens.values()):
            self.step()


def check_rows_alone(session: Session, capacity: Capacity, count: int, first_chunked: int) -> None:
    """Run `count` rows, whole or, from `first_chunked` on, in chunks; then compare each with itself alone."""
    run = Rows(session, capacity)
    chunked = [number for number in range(first_chunked, count + 1) if number * 5 % 13]
    run.step(*(run.row(number) for number in range(1, count + 1) if number not in chunked))
    run.step(*(run.row(number, 1) for number in chunked))
    run.step(grants=tuple(Grant(number, number * 5 % 13) for number in chunked))
    run.until_done()
    session.clear(None)
    for number, made in run.tokens.items():
        alone = Rows(session, capacity)
        alone.step(alone.row(number))
        alone.until_done()
        session.clear(None)
        assert alone.tokens[number][:NEW] == made[:NEW], number


def check_shared_prefix(session: Session, capacity: Capacity) -> None:
    """Check that a request whose first block was computed for another one makes the tokens that it makes from scratch."""
    size, prompt = capacity.groups[0].block_size, (PROMPTS[2] * 2)[:20]
    run = Schedule(session, capacity)
    first = run.request(1, prompt, len(prompt))
    run.step(first)
    second = run.request(2, prompt, len(prompt) - size)
    run.step(replace(second, cached=size, blocks=((first.blocks[0][0], *second.blocks[0][1:]),)))
    while len(run.tokens[2]) < NEW:
        run.step()
    assert run.tokens[2][:NEW] == run.tokens[1][:NEW]
