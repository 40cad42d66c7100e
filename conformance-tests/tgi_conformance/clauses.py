"""The clauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tgi_conformance.subject import Clause, Subject
from tgi_core.backend import (
    EMPTY,
    BackendError,
    CapacityExceeded,
    Feature,
    Grant,
    Handle,
    InvalidRequest,
    Mixing,
    Sampling,
    UnknownBatch,
    UnknownRequest,
    Unsupported,
)

CLAUSES: list[Clause] = []
"""All clauses, in the order of their definition."""

_PROMPTS = ((3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9), (2,))


def _clause(id: str, sentence: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    def register(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
        CLAUSES.append(Clause(id, sentence, check))
        return check

    return register


def _raises(kind: type[BackendError], verb: Callable[..., Any], *arguments: Any) -> None:
    try:
        result = verb(*arguments)
    except BackendError as error:
        assert isinstance(error, kind), f"raised {type(error).__name__}, not {kind.__name__}"
        return
    raise AssertionError(f"returned {result!r}, but must raise {kind.__name__}")


def _solo(subject: Subject, prompt: tuple[int, ...], count: int, sampling: Sampling = Sampling()) -> list[int]:
    driver = subject.drive()
    tokens = driver.generate(driver.request(prompt, sampling=sampling), count)
    driver.session.close()
    return tokens


@_clause("repeat", "The same request makes the same tokens again.")
def repeat(subject: Subject) -> None:
    """Greedy and seeded."""
    for sampling in (Sampling(), Sampling(do_sample=True, temperature=1.2, top_k=20, seed=7)):
        assert _solo(subject, _PROMPTS[0], 6, sampling) == _solo(subject, _PROMPTS[0], 6, sampling)


@_clause("mates", "A row never depends on its batch mates: merged rows make the tokens that they make alone.")
def mates(subject: Subject) -> None:
    """Batches that start apart and are merged by decode."""
    driver = subject.drive()
    requests = [driver.request(prompt) for prompt in _PROMPTS]
    ids = tuple(request.id for request in requests)
    first, second = driver.prefill(*requests[:2]), driver.prefill(*requests[2:])
    handle = driver.decode(first, second, ids=ids)
    for _ in range(4):
        handle = driver.decode(handle, ids=ids)
    for request, prompt in zip(requests, _PROMPTS, strict=True):
        assert driver.rows[request.id].tokens == _solo(subject, prompt, 6), f"request {request.id} differs from its solo run"


@_clause("filter-keeps", "Filter changes no token of the rows that it keeps.")
def filter_keeps(subject: Subject) -> None:
    """The middle row leaves."""
    driver = subject.drive()
    requests = [driver.request(prompt) for prompt in _PROMPTS[:3]]
    handle = driver.prefill(*requests)
    keep = (requests[0].id, requests[2].id)
    handle = driver.session.filter(handle, keep)
    for _ in range(4):
        handle = driver.decode(handle, ids=keep)
    for index in (0, 2):
        assert driver.rows[requests[index].id].tokens == _solo(subject, _PROMPTS[index], 5)


@_clause("filter-nothing", "Filter with nothing to keep returns EMPTY and ends the batch.")
def filter_nothing(subject: Subject) -> None:
    """The handle is dead afterwards."""
    driver = subject.drive()
    handle = driver.prefill(driver.request(_PROMPTS[0]))
    assert driver.session.filter(handle, ()) == EMPTY
    _raises(UnknownBatch, driver.session.decode, (handle,), ())


@_clause("single-use", "A handle is dead once a verb has taken it.")
def single_use(subject: Subject) -> None:
    """After decode, after filter, after clear; and one that was never given out."""
    driver = subject.drive()
    request = driver.request(_PROMPTS[0])
    old = driver.prefill(request)
    new = driver.decode(old, ids=(request.id,))
    _raises(UnknownBatch, driver.session.decode, (old,), ())
    newer = driver.session.filter(new, (request.id,))
    _raises(UnknownBatch, driver.session.filter, new, (request.id,))
    driver.session.clear(newer)
    _raises(UnknownBatch, driver.session.clear, newer)
    _raises(UnknownBatch, driver.session.decode, (Handle(10**9),), ())


@_clause("unchanged", "An error from a verb changes nothing: the same batch goes on afterwards.")
def unchanged(subject: Subject) -> None:
    """Unknown rows, doubled batches, grants for strangers, a request that breaks the rules."""
    driver = subject.drive()
    request = driver.request(_PROMPTS[0])
    handle = driver.prefill(request)
    session = driver.session
    _raises(UnknownRequest, session.filter, handle, (10**9,))
    _raises(InvalidRequest, session.decode, (handle, handle), ())
    _raises(InvalidRequest, session.decode, (), ())
    _raises(UnknownRequest, session.decode, (handle,), (Grant(10**9, 1),))
    _raises(InvalidRequest, session.decode, (handle,), (Grant(request.id, 2),))
    _raises(InvalidRequest, session.prefill, (), EMPTY, ())
    _raises(InvalidRequest, session.prefill, (request,), EMPTY, ())
    for _ in range(4):
        handle = driver.decode(handle, ids=(request.id,))
    assert driver.rows[request.id].tokens == _solo(subject, _PROMPTS[0], 5)


@_clause("capacity", "More rows than promised raise CapacityExceeded, and nothing is admitted.")
def capacity(subject: Subject) -> None:
    """One row too many."""
    driver = subject.drive()
    requests = tuple(driver.request((index + 1,)) for index in range(driver.capacity.max_rows + 1))
    _raises(CapacityExceeded, driver.session.prefill, requests, EMPTY, ())
    driver.prefill(*requests[: min(4, driver.capacity.max_prefill_rows, driver.capacity.max_rows)])


@_clause("cover", "Blocks that do not cover a step's positions are refused.")
def cover(subject: Subject) -> None:
    """A prompt one block short."""
    driver = subject.drive()
    size = driver.capacity.groups[0].block_size
    if size >= driver.capacity.max_row_tokens:
        return
    request = driver.request(tuple(range(size)))
    handle = driver.prefill(request)
    _raises(InvalidRequest, driver.session.decode, (handle,), ())


@_clause("distinct", "A block that stands twice in a row's table is refused.")
def distinct(subject: Subject) -> None:
    """Twice in one request, and again in a grant."""
    driver = subject.drive()
    request = driver.request(_PROMPTS[0])
    block = request.blocks[0][0]
    _raises(InvalidRequest, driver.session.prefill, (replace(request, blocks=((block, block),)),), EMPTY, ())
    handle = driver.prefill(request)
    _raises(InvalidRequest, driver.session.decode, (handle,), (Grant(request.id, 1, ((block,),)),))


@_clause("clear", "Clear of everything ends every batch, counts the rows, and may be repeated.")
def clear(subject: Subject) -> None:
    """Two batches, three rows."""
    driver = subject.drive()
    first = driver.prefill(driver.request(_PROMPTS[0]))
    driver.prefill(driver.request(_PROMPTS[1]), driver.request(_PROMPTS[2]))
    assert driver.session.clear(None).count == 3
    assert driver.session.clear(None).count == 0
    _raises(UnknownBatch, driver.session.decode, (first,), ())


@_clause("chunks", "A prompt in chunks makes the tokens of the prompt in one piece, and none before it is complete.")
def chunks(subject: Subject) -> None:
    """Pieces of 3, 2 and 2 tokens; refused where chunking is not declared."""
    driver = subject.drive()
    request = driver.request(_PROMPTS[2], take=3)
    if Feature.CHUNKED_PREFILL not in driver.session.capabilities().features:
        return _raises(Unsupported, driver.session.prefill, (request,), EMPTY, ())
    handle = driver.prefill(request)
    for _ in range(2):
        assert driver.rows[request.id].tokens == []
        handle = driver._read(driver.session.decode((handle,), (driver.grant(request.id, 2),)))
    for _ in range(4):
        handle = driver.decode(handle, ids=(request.id,))
    assert driver.rows[request.id].tokens == _solo(subject, _PROMPTS[2], 5)
    return None


@_clause("mixing", "New rows may join a running batch in one step where mixing is declared, and are refused where not.")
def mixing(subject: Subject) -> None:
    """One row joins another."""
    driver = subject.drive()
    old, new = driver.request(_PROMPTS[0]), driver.request(_PROMPTS[1])
    handle = driver.prefill(old)
    if driver.session.capabilities().mixing is Mixing.NONE:
        return _raises(Unsupported, driver.session.prefill, (new,), handle, ())
    handle = driver.prefill(new, cached=handle, grants=(driver.grant(old.id),))
    for _ in range(3):
        handle = driver.decode(handle, ids=(old.id, new.id))
    assert driver.rows[old.id].tokens == _solo(subject, _PROMPTS[0], 5)
    assert driver.rows[new.id].tokens == _solo(subject, _PROMPTS[1], 4)
    return None


@_clause("sit-out", "A grant of 0 makes a row sit the step out; it goes on later as if nothing had been.")
def sit_out(subject: Subject) -> None:
    """One of two rows pauses for two steps."""
    driver = subject.drive()
    stays, pauses = driver.request(_PROMPTS[0]), driver.request(_PROMPTS[1])
    handle = driver.prefill(stays, pauses)
    for _ in range(2):
        grants = (driver.grant(stays.id), Grant(pauses.id, 0))
        handle = driver._read(driver.session.decode((handle,), grants))
    for _ in range(3):
        handle = driver.decode(handle, ids=(stays.id, pauses.id))
    assert driver.rows[stays.id].tokens == _solo(subject, _PROMPTS[0], 6)
    assert driver.rows[pauses.id].tokens == _solo(subject, _PROMPTS[1], 4)


@_clause("reuse", "Blocks of a dropped row may be granted in the very next verb.")
def reuse(subject: Subject) -> None:
    """A new request takes over the blocks of a row that has just been filtered."""
    driver = subject.drive()
    old, new = driver.request(_PROMPTS[0]), driver.request(_PROMPTS[1])
    handle = driver.prefill(old)
    step = driver.session.decode((handle,), (driver.grant(old.id),))
    driver.session.filter(step.handle, ())
    driver.rows[new.id].blocks[:] = driver.rows[old.id].blocks
    taken = type(new)(
        new.id, new.tokens, new.prompt_len, 0, (tuple(driver.rows[old.id].blocks),), new.take, new.sampling, new.want
    )
    later = driver.session.prefill((taken,), EMPTY, ())
    driver.session.rows(step)
    handle = driver._read(later)
    for _ in range(3):
        handle = driver.decode(handle, ids=(new.id,))
    assert driver.rows[new.id].tokens == _solo(subject, _PROMPTS[1], 4)
