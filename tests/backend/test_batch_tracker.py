"""The books of a session: which steps can be read, and what dies with one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tgi_core.backend import (
    EMPTY,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    CapacityExceeded,
    Determinism,
    Feature,
    Grant,
    InvalidRequest,
    Mixing,
    OutputOptions,
    Request,
    UnknownBatch,
    Unsupported,
)
from tgi_core.backend.batch_tracker import BatchTracker

CAPABILITIES = Capabilities(
    features=frozenset(),
    sampling=frozenset(),
    block_sizes=(4,),
    mixing=Mixing.EAGER,
    determinism=Determinism.CORE,
    vocab_size=99,
    max_positions=64,
)


@pytest.fixture
def tracker() -> BatchTracker:
    """Of a session that runs two steps ahead."""
    capacity = Capacity(
        groups=(CacheGroup(CacheKind.FULL, 4, 32),),
        max_rows=8,
        max_row_tokens=16,
        max_step_tokens=64,
        max_prefill_rows=8,
        in_flight=3,
    )
    return BatchTracker(CAPABILITIES, capacity)


def row(id: int) -> Request:
    """One with four blocks of its own."""
    first = 1 + 4 * (id - 1)
    return Request(id, (1, 2), 2, 0, (tuple(range(first, first + 4)),), 2, want=OutputOptions(logprobs=False))


def test_steps_are_read_once_and_in_order(tracker: BatchTracker) -> None:
    """One that is passed over is given up."""
    first = tracker.prefill((row(1),), EMPTY, ())
    second = tracker.decode((first.step.handle,), ())
    third = tracker.decode((second.step.handle,), ())
    assert tracker.read(first.step) is first
    assert tracker.read(third.step) is third
    for launch in (first, second, third):
        with pytest.raises(InvalidRequest, match="was read before, or never launched"):
            tracker.read(launch.step)


def test_prompts_and_decoding_rows_apart() -> None:
    """Without mixing, a step holds chunks or rows that decode, and those that sit out are in neither; a refusal changes nothing."""
    features = frozenset({Feature.CHUNKED_PREFILL})
    capacity = Capacity((CacheGroup(CacheKind.FULL, 4, 32),), 8, 16, 64, 8)
    tracker = BatchTracker(replace(CAPABILITIES, features=features, mixing=Mixing.NONE), capacity)
    decodes = tracker.prefill((row(1),), EMPTY, ()).step.handle
    begun = tracker.prefill((replace(row(2), tokens=(1, 2, 3, 4), prompt_len=4),), EMPTY, ()).step.handle
    for take in (2, 1):  # a part of one token is a prompt's, too
        with pytest.raises(Unsupported, match="does not mix prefill and decode"):
            tracker.decode((decodes, begun), (Grant(2, take),))
    chunk = tracker.decode((decodes, begun), (Grant(1, 0), Grant(2, 1)))
    assert [(row_inputs.row.request.id, row_inputs.take) for row_inputs in chunk.row_inputs] == [(2, 1)]
    token = tracker.decode((chunk.step.handle,), ())
    assert [(row_inputs.row.request.id, row_inputs.take) for row_inputs in token.row_inputs] == [(1, 1)]


def test_what_dies_with_a_step(tracker: BatchTracker) -> None:
    """Its batch and all that was made of it meanwhile, whoever has left or joined; not what was made before or beside it."""
    doomed = tracker.prefill((row(1), row(2)), EMPTY, ())
    beside = tracker.prefill((row(3),), EMPTY, ())
    left = tracker.filter(doomed.step.handle, (2,))
    merged = tracker.decode((left, beside.step.handle), ())
    joined = tracker.filter(merged.step.handle, (3,))
    apart = tracker.prefill((row(4),), EMPTY, ())
    tracker.kill(doomed.step)
    assert tracker.live_ids == {4}
    for handle in (left, merged.step.handle, joined):
        with pytest.raises(UnknownBatch):
            tracker.decode((handle,), ())
    tracker.decode((apart.step.handle,), ())


def test_a_batch_outlives_what_failed_before_it_was_made(tracker: BatchTracker) -> None:
    """A step that was read long ago is none that its batch can die with, though others fail."""
    first = tracker.prefill((row(1),), EMPTY, ())
    other = tracker.prefill((row(2),), EMPTY, ())
    tracker.read(first.step)
    tracker.read(other.step)
    goes_on = tracker.decode((first.step.handle,), ())
    fails = tracker.decode((other.step.handle,), ())
    tracker.read(goes_on.step)
    tracker.kill(tracker.read(fails.step).step)
    assert tracker.live_ids == {1}


@pytest.fixture
def speculating() -> BatchTracker:
    """Of a session that runs up to three drafts per row, and two steps ahead."""
    capacity = Capacity((CacheGroup(CacheKind.FULL, 4, 32),), 8, 16, 64, 8, in_flight=3, draft=3)
    return BatchTracker(replace(CAPABILITIES, features=frozenset({Feature.SPECULATION})), capacity)


def test_drafts_that_are_refused(tracker: BatchTracker, speculating: BatchTracker) -> None:
    """Each refusal names the request and changes nothing; drafts follow a complete prompt, within limits, with a take to fit."""
    batch = speculating.prefill((row(1),), EMPTY, ()).step.handle
    for grant, error, text in (
        (Grant(1, 3, drafts=(1,)), InvalidRequest, "take 3 must be from 0 to 2"),
        (Grant(1, 1, drafts=(1,)), InvalidRequest, "take 1 must be 1 more than its 1 drafts"),
        (Grant(1, 5, drafts=(1, 2, 3, 4)), CapacityExceeded, "4 drafts exceed draft 3"),
        (Grant(1, 2, drafts=(99,)), InvalidRequest, "drafts must be from 0 to 98"),
    ):
        with pytest.raises(error, match=f"request 1: {text}"):
            speculating.decode((batch,), (grant,))
    speculating.decode((batch,), ())
    with pytest.raises(Unsupported, match="request 1 needs speculation"):
        tracker.decode((tracker.prefill((row(1),), EMPTY, ()).step.handle,), (Grant(1, 2, drafts=(1,)),))


def test_a_row_waits_for_its_drafts_to_be_read(speculating: BatchTracker) -> None:
    """Nobody knows its length before; afterwards it goes on behind the drafts that were accepted."""
    first = speculating.prefill((row(1),), EMPTY, ())
    first.row_inputs[0].row.tokens.append(7)
    second = speculating.decode((first.step.handle,), (Grant(1, 4, drafts=(8, 9, 10)),))
    assert second.row_inputs[0].tokens == [7, 8, 9, 10]
    with pytest.raises(InvalidRequest, match="has not been read"):
        speculating.decode((second.step.handle,), ())
    waiting = speculating.decode((second.step.handle,), (Grant(1, 0),))
    second.row_inputs[0].row.accept((8, 5))
    last = speculating.decode((waiting.step.handle,), ())
    assert (last.row_inputs[0].start, last.row_inputs[0].tokens) == (4, [5])


def test_rows_with_drafts_are_no_prompts() -> None:
    """`max_prefill_rows` counts rows that take several tokens of their prompts, however few, and none that runs drafts."""
    capacity = Capacity((CacheGroup(CacheKind.FULL, 4, 32),), 8, 16, 64, 1, draft=3)
    tracker = BatchTracker(replace(CAPABILITIES, features=frozenset({Feature.SPECULATION})), capacity)
    handles = [tracker.prefill((row(id),), EMPTY, ()).step.handle for id in (1, 2)]
    tracker.decode(handles, (Grant(1, 2, (), (5,)), Grant(2, 4, (), (5, 6, 7))))
    with pytest.raises(CapacityExceeded, match="max_prefill_rows"):
        tracker.prefill((row(3), row(4)), EMPTY, ())


def test_blocks_that_a_window_leaves_behind() -> None:
    """Whoever gets them next, the row itself included; before it leaves them, they are its own. Drafts that are unread leave nothing."""
    capacity = Capacity((CacheGroup(CacheKind.WINDOW, 4, 8, window=5),), 8, 40, 64, 8, in_flight=2, draft=4)
    tracker = BatchTracker(replace(CAPABILITIES, features=frozenset({Feature.SPECULATION, Feature.PREFIX_REUSE})), capacity)
    tokens, plain = (1,) * 8, OutputOptions(logprobs=False)
    batch = tracker.prefill((Request(1, tokens, 8, 0, ((1, 2),), 8, want=plain),), EMPTY, ()).step.handle
    grown = tracker.decode((batch,), (Grant(1, 1, ((1,),)),))  # position 8 sees 4…8
    assert grown.row_inputs[0].row.tables == ([1, 2, 1],)
    with pytest.raises(InvalidRequest, match="request 1: a block appears twice in its table"):
        tracker.decode((grown.step.handle,), (Grant(1, 1, ((2,),)),))  # position 9 still sees 5
    drafting = tracker.decode((grown.step.handle,), (Grant(1, 5, ((3,),), drafts=(1, 1, 1, 1)),))
    with pytest.raises(InvalidRequest, match="request 1: a block appears twice in its table"):
        tracker.decode((drafting.step.handle,), (Grant(1, 0, ((2,),)),))  # drafts may be rejected
    for table, right in (((0, 4, 5), True), ((0, 0, 5), False), ((9, 4, 5), False), ((4, 4, 5), True), ((4, 5, 5), False)):
        behind = Request(2, (1,) * 9, 9, 8, (table,), 1, want=plain)  # position 8 sees the second block and the third
        if right:
            tracker.clear(tracker.prefill((behind,), EMPTY, ()).step.handle)
        else:
            with pytest.raises(InvalidRequest, match=r"request 2: (block ids must be|a block appears twice)"):
                tracker.prefill((behind,), EMPTY, ())
