"""Reasoning in what a model writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tgi_router.reasoning import ReasoningReader, ReasoningTags, reasoning_tags

TAGS = ReasoningTags("<think>", "</think>")


def read(text: str, opened: bool = False, size: int = 1) -> tuple[str, str]:
    """Reasoning and answer of a text that comes in pieces of `size`."""
    reader = ReasoningReader(TAGS, opened)
    pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    read = [reader.push(piece, place == len(pieces) - 1) for place, piece in enumerate(pieces)]
    return "".join(thought for thought, _ in read), "".join(said for _, said in read)


@pytest.mark.parametrize(
    ("text", "opened", "thought", "said"),
    [
        ("<think>a b</think>c", False, "a b", "c"),
        ("\n<think>\n a \n b \n</think>\n\n c \n", False, "a \n b", "c \n"),
        ("a</think>b", True, "a", "b"),
        ("a </thin", True, "a </thin", ""),
        ("<think>", False, "", ""),
        ("<think></think>\n\nHi", False, "", "Hi"),
        ("<thi", False, "", "<thi"),
        ("Hi <think>x</think>", False, "", "Hi <think>x</think>"),
        ("  Hi", False, "", "  Hi"),
        ("", False, "", ""),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("<think>a" + " " * 200 + "b</think>", False, "a" + " " * 200 + "b", ""),
    ],
)
def test_parts(text: str, opened: bool, thought: str, said: str) -> None:
    """What is between the tags, if the text begins with them, is reasoning, however it comes in pieces."""
    for size in (1, 2, 3, 7, len(text) or 1):
        assert read(text, opened, size) == (thought, said), size


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", "a", " ", "\n"]), max_size=30),
    st.booleans(),
    st.integers(1, 9),
)
def test_pieces_do_not_matter(parts: list[str], opened: bool, size: int) -> None:
    """Reasoning and answer are the same however the text comes, and nothing is added."""
    text = "".join(parts)
    thought, said = read(text, opened, size)
    assert (thought, said) == read(text, opened, len(text) or 1)
    rest = iter(text)
    assert all(character in rest for character in thought + said)


def test_tags_of_templates() -> None:
    """A model reasons if one of its templates knows the end of reasoning."""
    assert reasoning_tags(["{{ a }}", "x</think>y"]) == TAGS
    assert reasoning_tags(["[/THINK]"]) == ReasoningTags("[THINK]", "[/THINK]")
    assert reasoning_tags(["<think>"]) is None
