"""A prompt that is far too long is refused by its length, and none that fits ever is."""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tgi_router import app
from tgi_router.tokenizing import Tokenizing

from tests.router.conftest import Serve
from tests.router.serving import Served
from tgi_core.literals import Span
from tgi_core.model_files import DEMO
from tgi_core.token_span import longest_span
from tgi_core.tokenizer import Tokenizer

Json = dict[str, Any]
DEMO_JSON: Json = json.loads((DEMO / "tokenizer.json").read_text())
_LLAMA_VOCABULARY = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁▁", "▁▁▁▁", "aa", "ab", "▁a", "é"]
_LLAMA: Json = {
    **DEMO_JSON,
    "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]},
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "BPE", "unk_token": None, "byte_fallback": True, "fuse_unk": True, "ignore_merges": False,
        "vocab": {token: id for id, token in enumerate(_LLAMA_VOCABULARY)},
        "merges": [["▁", "▁"], ["▁▁", "▁▁"], ["a", "a"], ["a", "b"], ["▁", "a"]],
    },
}  # fmt: skip
BOUNDED: dict[str, Json] = {
    "byte level": DEMO_JSON,
    "byte level, composed": {**DEMO_JSON, "normalizer": {"type": "NFC"}},
    "byte level, compatible": {**DEMO_JSON, "normalizer": {"type": "NFKC"}},
    "byte level, lower case": {**DEMO_JSON, "normalizer": {"type": "Lowercase"}},
    "byte level, shortened": {**DEMO_JSON, "normalizer": {"type": "Replace", "pattern": {"String": "    "}, "content": " "}},
    "byte fallback": _LLAMA,
}
SPACED = copy.deepcopy(DEMO_JSON)
SPACED["added_tokens"][2]["rstrip"] = True
_LACKING = {token: id for token, id in DEMO_JSON["model"]["vocab"].items() if token != "ÿ"}
UNBOUNDED: dict[str, Json] = {
    "white space beside special tokens": SPACED,
    "white space dropped": {**DEMO_JSON, "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    "runs replaced": {**DEMO_JSON, "normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}},
    "text removed": {**DEMO_JSON, "normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ""}},
    "splits without what is between": {**DEMO_JSON, "pre_tokenizer": {"type": "WhitespaceSplit"}},
    "splits removed": {
        **DEMO_JSON,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False},
    },
    "unknown words": {
        **DEMO_JSON,
        "model": {"type": "WordPiece", "unk_token": "x", "vocab": {"x": 0}, "max_input_chars_per_word": 100,
                  "continuing_subword_prefix": "##"},
    },
    "a byte is missing": {**DEMO_JSON, "model": {**DEMO_JSON["model"], "vocab": _LACKING}},
}  # fmt: skip
RUNS = st.tuples(st.text(min_size=1, max_size=3), st.integers(1, 200)).map(lambda run: run[0] * run[1])
LONG = st.sampled_from(["\u1100\u1161\u11a8", "\u212b\u0301", "\u03b1\u0313\u0301\u0345", "\U0001d400", "İ", "    ", "\n" * 40])
TEXTS = st.lists(RUNS | LONG.map(lambda text: text * 20), min_size=1, max_size=5).map("".join)


def written(folder: Path, described: Json) -> Path:
    """A model directory of a tokenizer alone."""
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


@pytest.mark.parametrize("described", BOUNDED.values(), ids=BOUNDED)
def test_no_token_stands_for_more(tmp_path: Path, described: Json) -> None:
    """Whatever the text, it has at least as many tokens as its bytes divided by the bound."""
    span = longest_span(written(tmp_path, described) / "tokenizer.json")
    assert span is not None and span < 200
    tokenizer = Tokenizer.load(tmp_path)

    @settings(max_examples=60, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) * span >= len(text.encode())

    check()


@pytest.mark.parametrize("described", UNBOUNDED.values(), ids=UNBOUNDED)
def test_tokenizers_without_a_bound(tmp_path: Path, described: Json) -> None:
    """Where text can vanish, or a run of it become one token, nothing is claimed."""
    assert longest_span(written(tmp_path, described) / "tokenizer.json") is None


def test_forms_of_unicode_shrink_less_than_is_assumed() -> None:
    """No character's compositions are over 6 times as short as what they may be made of."""
    for number in range(0x110000):
        character = chr(number)
        if unicodedata.category(character) not in ("Cs", "Cn"):
            parts = unicodedata.normalize("NFD", character)
            assert len(parts) * 4 <= 6 * len(character.encode()), hex(number)


class Counting(Tokenizing):
    """Counts what it is asked to do."""

    calls = 0

    async def ids(self, text: str, special: bool, literals: Sequence[Span], keep: int) -> tuple[int, tuple[int, ...]]:
        """Count it."""
        Counting.calls += 1
        return await super().ids(text, special, literals, keep)


@pytest.mark.parametrize("repeated", ["no end ", "a", "\n.", "é", "\U0001f600"])
def test_a_mebibyte_is_refused_without_work(serve: Serve, monkeypatch: pytest.MonkeyPatch, repeated: str) -> None:
    """No route that generates tokenizes a prompt of a mebibyte; all tell TGI's text with what is known."""
    monkeypatch.setattr(app, "Tokenizing", Counting)
    monkeypatch.setattr(Counting, "calls", 0)
    served, _ = serve(payload_limit=2**22)
    text = (repeated * 2**20)[: 2**20 // len(repeated.encode())]
    messages = [{"role": "user", "content": text}]
    for path, body in [
        ("/generate", {"inputs": text}), ("/", {"inputs": text}), ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": messages}), ("/vertex", {"instances": [{"inputs": text}]}),
        ("/invocations", {"messages": messages}), ("/generate", {"inputs": text, "parameters": {"max_new_tokens": 5}}),
    ]:  # fmt: skip
        answer = served.client.post(path, json=body)
        assert answer.status_code == 422 and "must be <= 64. Given: at least " in answer.text, (path, answer.text)
    assert Counting.calls == 0
    assert answer_of(served, text[:5000], truncate=9) == 200 and Counting.calls == 1


def answer_of(served: Served, text: str, **parameters: Any) -> int:
    """The status of a native call."""
    return served.client.post("/generate", json={"inputs": text, "parameters": parameters}).status_code


def test_what_fits_is_never_refused(serve: Serve) -> None:
    """The longest text that fits, of the longest tokens that there are, is answered; one token more is counted exactly."""
    served, _ = serve()
    longest = max(DEMO_JSON["model"]["vocab"], key=len).replace("Ġ", " ")
    for count in range(1, 80):
        text = longest * count
        tokens = len(served.client.post("/tokenize", json={"inputs": text}).json())
        assert answer_of(served, text, max_new_tokens=1) == (200 if tokens <= 60 else 422)
