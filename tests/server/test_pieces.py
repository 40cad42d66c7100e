"""The text of a token, looked up: the same as if all before it had been decoded with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models

from tgi_core.model_files import DEMO
from tgi_core.server.detokenize import Detokenizer
from tgi_core.tokenizer import Tokenizer

_WORDS = ["a", "b", "é", "▁", "▁a", "▁é", "##b", "\ufffd"]
_VOCABULARY = {token: id for id, token in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS])}


class Decoding(Tokenizer):
    """Looks nothing up."""

    def piece(self, id: int) -> str | None:
        """Always depends on its neighbours."""
        return None


def made(decoder: decoders.Decoder | None, kind: type[Tokenizer] = Tokenizer) -> Tokenizer:
    """A tokenizer of words and bytes."""
    fast = Fast(models.BPE(_VOCABULARY, [], unk_token="<unk>", byte_fallback=True))
    fast.decoder = decoder
    return kind(fast, Path(), frozenset(), frozenset())


DECODERS = {
    "sentencepiece": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "metaspace": decoders.Metaspace,
    "byte level": decoders.ByteLevel,
    "word pieces": decoders.WordPiece,
    "none": lambda: None,
}
ids = st.lists(st.sampled_from([0, *range(60, 70), 0xC3 + 1, 0xA9 + 1, *range(257, 265)]), max_size=12)


@pytest.mark.parametrize("name", DECODERS)
@given(tokens=ids, prompt=ids)
def test_looked_up_as_decoded(name: str, tokens: list[int], prompt: list[int]) -> None:
    """Whatever a tokenizer does to its tokens, each piece is the one that decoding would give."""
    decoder = DECODERS[name]()
    looking, decoding = Detokenizer(made(decoder), prompt), Detokenizer(made(decoder, Decoding), prompt)
    assert [looking.push(token) for token in tokens] == [decoding.push(token) for token in tokens]
    assert looking.flush() == decoding.flush()


@pytest.fixture(scope="module")
def slow() -> Tokenizer:
    """The demo model's tokenizer, without looking up."""
    return Decoding.load(DEMO)


@given(tokens=st.lists(st.integers(0, 2047), max_size=40))
def test_a_real_vocabulary(demo_tokenizer: Tokenizer, slow: Tokenizer, tokens: list[int]) -> None:
    """The same for that of a real model, where most tokens are looked up."""
    looking, decoding = Detokenizer(demo_tokenizer, (70,)), Detokenizer(slow, (70,))
    assert [looking.push(token) for token in tokens] == [decoding.push(token) for token in tokens]
    assert demo_tokenizer.piece(demo_tokenizer.encode(" the", add_special_tokens=False).ids[0]) is not None
