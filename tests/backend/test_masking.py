"""What backends share in asking for masks, and what a row gets that its device cannot choose for."""

from __future__ import annotations

from tgi_core.backend import MaskRow, OutputOptions, Request, RowFaultKind, Sampling
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.drawing import drawn
from tgi_core.backend.masking import allowed_by_request, allowed_tokens

VOCAB_SIZE = 40


class Source:
    """A row may make the tokens whose ids are multiples of its own."""

    def __init__(self) -> None:
        self.asked: list[tuple[MaskRow, ...]] = []

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """Two words a row."""
        self.asked.append(rows)
        bits = (sum(1 << id for id in range(0, VOCAB_SIZE, row.request_id)) for row in rows)
        return b"".join(value.to_bytes(8, "little") for value in bits)


def work(id: int, *made: int, masked: bool = True, yields: bool = True) -> RowInput:
    """A row's part of a step."""
    prompt = (1, 2)
    request = Request(id, prompt, 2, 0, ((1,),), 2, Sampling(), OutputOptions(logprobs=False), masked)
    return RowInput(RowState(request, [*prompt, *made], 2, ([1],)), 0, 2, yields)


def test_a_step_asks_once() -> None:
    """For its masked rows that are about to make a token, with their newest ones."""
    source = Source()
    row_inputs = [work(7), work(5, masked=False), work(11, 33), work(13, yields=False)]
    assert allowed_by_request(source, row_inputs, VOCAB_SIZE) == {7: [0, 7, 14, 21, 28, 35], 11: [0, 11, 22, 33]}
    assert source.asked == [(MaskRow(7), MaskRow(11, (33,)))]
    assert allowed_tokens(source, row_inputs[2].row, VOCAB_SIZE) == [0, 11, 22, 33]


def test_nobody_is_asked_for_nothing() -> None:
    """Steps without masked rows, and sessions without a source."""
    source = Source()
    assert allowed_by_request(source, [work(5, masked=False), work(13, yields=False)], VOCAB_SIZE) == {} and not source.asked
    assert allowed_by_request(None, [work(7)], VOCAB_SIZE) == {}


def test_a_mask_that_leaves_no_logit() -> None:
    """The fault says whose gap it is: the mask allows some, the device has none of them."""
    fault = drawn(work(7), {1: 0.5, 2: 0.1}, [0, 7, 14]).fault
    assert fault is not None and fault.kind is RowFaultKind.SAMPLER
    assert fault.message == "the mask allows 3 tokens, the device has no logit for any of them"
    empty = drawn(work(7), {1: 0.5}, []).fault
    assert empty is not None and empty.kind is RowFaultKind.MASK
    assert drawn(work(7), {1: 0.5, 7: 0.1}, [0, 7, 14]).tokens == (7,)
