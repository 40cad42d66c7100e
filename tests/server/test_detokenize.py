"""Text leaves as it is made, whole characters only, and ends where a stop string ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgi_core.server.detokenize import Detokenizer
from tgi_core.server.stopping import StopMatcher, StoppingCriteria
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import FinishReason, Stopping

ids = st.lists(st.integers(0, 2047), max_size=40)
texts = st.text(st.characters(codec="utf-8"), max_size=40)


@given(tokens=ids)
def test_pieces_add_up(demo_tokenizer: Tokenizer, tokens: list[int]) -> None:
    """For any token ids, the pieces and the flush are the text of all of them."""
    detokenizer = Detokenizer(demo_tokenizer)
    pieces = [detokenizer.push(token) for token in tokens]
    assert "".join(pieces) + detokenizer.flush() == demo_tokenizer.decode(tokens)


@given(text=texts, prompt=texts)
def test_no_half_characters(demo_tokenizer: Tokenizer, text: str, prompt: str) -> None:
    """The pieces of a real text never hold a replacement character that the text does not have."""
    detokenizer = Detokenizer(demo_tokenizer, demo_tokenizer.encode(prompt, add_special_tokens=False).ids)
    pieces = [detokenizer.push(token) for token in demo_tokenizer.encode(text, add_special_tokens=False).ids]
    assert "".join(pieces) + detokenizer.flush() == text
    assert sum(piece.count("\ufffd") for piece in pieces) <= text.count("\ufffd")


def test_text_leaves_as_soon_as_it_is_whole(demo_tokenizer: Tokenizer) -> None:
    """An ASCII text leaves with each token; nothing is held back for later."""
    tokens = demo_tokenizer.encode("The capital of France is Paris.", add_special_tokens=False).ids
    detokenizer = Detokenizer(demo_tokenizer)
    assert all(detokenizer.push(token) for token in tokens)


@given(st.lists(st.text("ab", max_size=3), max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_matcher_finds_what_a_search_finds(pieces: list[str], stop: list[str]) -> None:
    """It stops in the first piece in which any stop string is complete, right after the one that ends first."""
    matcher, text, expected = StopMatcher(tuple(stop)), "", None
    for piece in pieces:
        got = matcher.push(piece)
        before, text = len(text), text + piece
        ends = [text.find(item) + len(item) for item in stop if item in text]
        expected = min(ends) - before if ends else None
        assert got == expected
        if got is not None:
            return


@pytest.mark.parametrize(
    ("stopping", "tokens", "reason"),
    [
        (Stopping(3), [(9, "a"), (9, "b"), (9, "c")], FinishReason.LENGTH),
        (Stopping(9), [(9, "a"), (1, "")], FinishReason.EOS_TOKEN),
        (Stopping(9, ("bc",)), [(9, "ab"), (9, "cd")], FinishReason.STOP_SEQUENCE),
        (Stopping(2), [(9, "a"), (1, "")], FinishReason.LENGTH),
        (Stopping(3, ignore_eos=True), [(1, ""), (1, ""), (1, "")], FinishReason.LENGTH),
        (Stopping(9, stop_ids=(7, 8)), [(9, "a"), (8, "b")], FinishReason.STOP_SEQUENCE),
        (Stopping(2, ignore_eos=True, stop_ids=(1,)), [(9, "a"), (1, "")], FinishReason.STOP_SEQUENCE),
        (Stopping(9, min_new_tokens=2), [(1, ""), (1, ""), (1, "")], FinishReason.EOS_TOKEN),
        (Stopping(9, stop_ids=(8,), min_new_tokens=1), [(8, "a"), (8, "a")], FinishReason.STOP_SEQUENCE),
        (Stopping(9, ("a",), min_new_tokens=1), [(9, "a"), (9, "b"), (9, "a")], FinishReason.STOP_SEQUENCE),
        (Stopping(9, ("ab",), min_new_tokens=1), [(9, "aba"), (9, "b")], FinishReason.STOP_SEQUENCE),
        (Stopping(2, ("a",), min_new_tokens=2), [(1, ""), (9, "a")], FinishReason.LENGTH),
    ],
)
def test_reasons(stopping: Stopping, tokens: list[tuple[int, str]], reason: FinishReason) -> None:
    """Length comes before end of sequence, which comes before stop strings; the last token of the list ends it."""
    criteria = StoppingCriteria(stopping, frozenset({1}))
    results = [criteria.push(*token)[0] for token in tokens]
    assert results == [None] * (len(tokens) - 1) + [reason]


def test_text_behind_the_stop_string_is_cut() -> None:
    """A stop string in the middle of a token is found; it stays, what follows it does not."""
    criteria = StoppingCriteria(Stopping(9, ("\n",)), frozenset())
    assert criteria.push(5, "end.\nNext") == (FinishReason.STOP_SEQUENCE, 5)
