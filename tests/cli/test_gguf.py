"""`tgi serve FILE.gguf`: config and tokenizer come from the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.engine.gguf_files import plain_tokenizer, sentence_pieces, tokenizer_of, write_gguf
from tests.engine.tiny_models import save_tiny, silent
from tests.serve.process import run, served
from tgi_core.errors import StartupError
from tgi_core.gguf.config import config_of
from tgi_core.gguf.header import GgufFile, GgufTensor
from tgi_core.hub import Source, fetch
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer

TEXTS = (
    "The capital of France is Paris.",
    "  two  spaces\n\nand 12345 digits",
    "don't stop, I'LL go",
    "naïve 漢字 😀",
    "the test sat on an oat",
)


def test_the_demo_model_is_served(tmp_path: Path) -> None:
    """As a q8_0 file, under the file's path: the answer, the chat template and the tokens are those of the original."""
    file, _ = write_gguf(DEMO, tmp_path, {r"(_proj|embed_tokens)\.weight": "Q8_0"}, tokenizer_of(DEMO, "smollm"))
    cache = ("--huggingface-hub-cache", str(tmp_path / "cache"))
    with served(str(file), "--backend", "cpu", *cache) as server:
        asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "model": "tgi"}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60).json()
    assert "Paris" in answer["choices"][0]["message"]["content"] and answer["choices"][0]["finish_reason"] == "stop"
    ours = Tokenizer.load(fetch(Source(str(file), cache=tmp_path / "cache"), silent))
    original = Tokenizer.load(DEMO)
    assert ours.eos_ids == original.eos_ids
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids


@pytest.mark.parametrize("kind", ["sentence pieces", "llama-bpe", "qwen2"])
def test_transformers_makes_the_same_tokens(kind: str, tmp_path: Path) -> None:
    """Its own conversion of the metadata. It does not put a space before a text that begins with one, as llama.cpp does."""
    made = sentence_pieces() if kind == "sentence pieces" else plain_tokenizer(300) | {"pre": kind}
    whole = save_tiny("qwen2" if kind == "qwen2" else "llama", tmp_path / "whole", vocab_size=len(made["tokens"]))
    file, _ = write_gguf(whole, tmp_path, {}, made)
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ours = Tokenizer.load(fetch(Source(str(file), cache=tmp_path / "cache"), silent))
    for text in TEXTS:
        text = (
            text.strip() if kind == "sentence pieces" else "".join(filter(str.isalpha, text.encode("ascii", "ignore").decode()))
        )
        ids = list(ours.encode(text, add_special_tokens=False).ids)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


def header(**metadata: Any) -> GgufFile:
    """A small llama's, with these changes; None takes a key out."""
    sizes = {"context_length": 64, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96}
    known: dict[str, Any] = {f"llama.{name}": value for name, value in sizes.items()}
    known |= {"general.architecture": "llama", "llama.attention.head_count": 4, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    known |= {name.replace("__", "."): value for name, value in metadata.items()}
    embedding = GgufTensor("token_embd.weight", "F32", (512, 64), 0, 512 * 64 * 4)
    return GgufFile(
        Path("m.gguf"), {name: value for name, value in known.items() if value is not None}, {embedding.name: embedding}
    )


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"general__architecture": "mamba"},
            "m.gguf: its architecture 'mamba' is not supported as a GGUF file; supported are llama",
        ),
        ({"general__architecture": None}, "general.architecture is missing"),
        ({"llama__block_count": None}, "llama.block_count is 'None'"),
        ({"llama__block_count": "2"}, "llama.block_count is '2'"),
        ({"llama__attention__head_count": 5}, "its metadata says 5 heads of a hidden size of 64"),
        ({"llama__attention__value_length": 8}, "heads of 16 numbers, which is not supported"),
        ({"llama__rope__scaling__type": "longrope"}, "llama.rope.scaling.type is longrope; supported are none, linear and yarn"),
        ({"llama__rope__dimension_count": 8}, "llama.rope.dimension_count is 8; supported is the size of a head, 16"),
        ({"llama__rope__freq_base": float("nan")}, "llama.rope.freq_base is nan"),
        ({"split__count": 3}, "is one of 3 files; join them with `llama-gguf-split --merge`"),
    ],
)
def test_metadata_that_is_not_understood(metadata: dict[str, Any], said: str) -> None:
    """One line that names the file and the key."""
    with pytest.raises(StartupError) as caught:
        config_of(header(**metadata))
    assert said in str(caught.value) and str(caught.value).startswith("m.gguf: ")


def test_scaled_frequencies(tmp_path: Path) -> None:
    """Llama 3.1's, of which the file holds only the factors, are recognized; others are refused."""
    import math
    import struct

    factors = []
    for index in range(8):
        smooth = min(1.0, max(0.0, (8192 / (2 * math.pi * 500000.0 ** (index / 8)) - 1) / 3))
        factors.append(1 / ((1 - smooth) / 8 + smooth))
    file = header(llama__rope__freq_base=500000.0)
    for values, wanted in ((factors, True), ([*factors[:-1], 3.0], False)):
        path = tmp_path / "m.gguf"
        path.write_bytes(struct.pack("<8f", *values))
        freqs = GgufTensor("rope_freqs.weight", "F32", (8,), 0, 32)
        changed = GgufFile(path, file.metadata, file.tensors | {freqs.name: freqs})
        if wanted:
            assert config_of(changed)["rope_scaling"]["factor"] == pytest.approx(8)
        else:
            with pytest.raises(StartupError, match="not Llama 3's scaling"):
                config_of(changed)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    """One line, before anything starts."""
    (tmp_path / "a.gguf").write_text(json.dumps({}))
    result = run("serve", str(tmp_path / "a.gguf"), "--hostname", "127.0.0.1", "--port", "0")
    assert result.returncode == 1 and f"{tmp_path / 'a.gguf'}: not a GGUF file" in result.stderr.splitlines()[-1]
