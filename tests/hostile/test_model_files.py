"""A model's files are a stranger's: what they say is refused in one line, or obeyed only as far as it is harmless."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.process import TGI, environment, served
from tgi_core.model_files import DEMO

Json = dict[str, Any]
Damage = Callable[[Path], object]

SECONDS = 120
"""For a start that takes two or ten."""
MOST_BYTES = 3 * 2**30
"""Resident, in any one process; a start that ends well takes 0.6 GiB."""

MEASURED = """
import resource, subprocess, sys
ended = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, timeout=float(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(ended.returncode)
"""
"""Runs a command and prints the KiB it had resident at most. A process of its own, since Linux counts what a child's parent had resident
as the child's."""

TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
NORM = "model.norm.weight"


def edit(name: str, change: Callable[[Json], object]) -> Damage:
    """Change a JSON file."""

    def damage(model: Path) -> None:
        value = json.loads((model / name).read_text())
        change(value)
        (model / name).write_text(json.dumps(value))

    return damage


def config(**fields: Any) -> Damage:
    """Set fields of config.json."""
    return edit("config.json", lambda value: value.update(fields))


def generation(**fields: Any) -> Damage:
    """Set fields of generation_config.json."""
    return edit("generation_config.json", lambda value: value.update(fields))


def tokenizer(**fields: Any) -> Damage:
    """Set fields of tokenizer.json."""
    return edit("tokenizer.json", lambda value: value.update(fields))


def added(count: int, first: int = 2048, **fields: Any) -> Damage:
    """Add tokens, after those of the vocabulary."""
    return edit(
        "tokenizer.json",
        lambda value: value["added_tokens"].extend(
            {"id": first + i, "content": f"<extra{i}>", **TOKEN, **fields} for i in range(count)
        ),
    )


def write(name: str, content: bytes) -> Damage:
    """Put other bytes into a file."""
    return lambda model: (model / name).write_bytes(content)


def replacing(kind: str, times: int, steps: int) -> Json:
    """A normalizer or a decoder that makes `times ** steps` of one letter."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times}
    return {"type": "Sequence", kind: [step] * steps}


def template(token: Json, copies: int = 1, sequences: int = 1) -> Json:
    """A post-processor that puts a token before each text."""
    piece, text = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    single = [piece] * copies + [text] * sequences
    pair = [text, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {"<s>": token}}


def header(change: Callable[[Json], object]) -> Damage:
    """Change the header of the weights, the data staying as it is."""

    def damage(model: Path) -> None:
        file = model / "model.safetensors"
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        value = json.loads(raw[8 : 8 + length])
        change(value)
        new = json.dumps(value).encode()
        file.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + length :])

    return damage


def shards(extra: bool, place: str = "b.safetensors") -> Damage:
    """The same weights behind an index, with a file that holds a tensor of the other's, or one of another place."""

    def damage(model: Path) -> None:
        raw = (model / "model.safetensors").read_bytes()
        names = [name for name in json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]) if name != "__metadata__"]
        (model / "model.safetensors").rename(model / "a.safetensors")
        one = {"x" if not extra else NORM: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
        head = json.dumps(one).encode()
        (model / "b.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
        places = dict.fromkeys(names, "a.safetensors") | {"x" if not extra else "y": place}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    return damage


def overlap(value: Json) -> None:
    """Let two tensors share bytes."""
    alike = [entry for entry in value.values() if entry.get("shape") == [256]]
    first, second = sorted(alike, key=lambda entry: entry["data_offsets"])[:2]
    second["data_offsets"] = first["data_offsets"]


ROWS: dict[str, tuple[Damage, list[str]]] = {
    "added token beyond": (added(1, special=False), ["tokenizer.json", "'<extra0>'", "2048", "2049"]),
    "200,000 added tokens beyond": (added(200_000), ["tokenizer.json", "'<extra0>'", "2048"]),
    "vocabulary beyond": (
        edit("tokenizer.json", lambda value: value["model"]["vocab"].update(zzz=10**9)), ["tokenizer.json", "'zzz'", "1000000000"]
    ),
    "added id that is none": (added(1, first=2**40), ["tokenizer.json", "not a tokenizer"]),
    "token of the template beyond": (
        tokenizer(post_processor=template({"id": "<s>", "ids": [999_999], "tokens": ["<s>"]})),
        ["tokenizer.json", "post_processor", "999999"],
    ),
    "template of many tokens": (
        tokenizer(post_processor=template({"id": "<s>", "ids": [1], "tokens": ["<s>"]}, copies=100_000)),
        ["tokenizer.json", "tokens for 0 characters"],
    ),
    "template that repeats": (
        tokenizer(post_processor=template({"id": "<s>", "ids": [1], "tokens": ["<s>"]}, sequences=10_000)),
        ["tokenizer.json", "tokens for"],
    ),
    "normalizer that multiplies": (tokenizer(normalizer=replacing("normalizers", 10, 9)), ["tokenizer.json", "normalizer", "times"]),
    "decoder that multiplies": (tokenizer(decoder=replacing("decoders", 10, 9)), ["tokenizer.json", "decoder", "times"]),
    "normalizer that multiplies some": (tokenizer(normalizer=replacing("normalizers", 90, 2)), ["tokenizer.json", "tokens for"]),
    "nested tokenizer": (write("tokenizer.json", b'{"a":' * 100_000), ["tokenizer.json", "not a tokenizer"]),
    "end of text is text": (generation(eos_token_id="5"), ["generation_config.json", "eos_token_id '5'"]),
    "end of text below": (generation(eos_token_id=-1), ["generation_config.json", "eos_token_id '-1'"]),
    "end of text beyond": (generation(eos_token_id=[5, 10**12]), ["generation_config.json", "eos_token_id '1000000000000'"]),
    "ends of text are junk": (generation(eos_token_id=[[5], {"a": 1}]), ["generation_config.json", "eos_token_id '[5]'"]),
    "end of text is true": (generation(eos_token_id=True), ["generation_config.json", "eos_token_id 'True'"]),
    "nested generation config": (write("generation_config.json", b"[" * 100_000), ["generation_config.json", "nested too deeply"]),
    "nested config": (write("config.json", b'{"a":' * 100_000), ["config.json", "nested too deeply"]),
    "10^9 layers": (config(num_hidden_layers=10**9), ["config.json", "num_hidden_layers is 1000000000"]),
    "10^5 layers": (config(num_hidden_layers=10**5), ["config.json", "num_hidden_layers is 100000", "numbered to 3"]),
    "no layers": (config(num_hidden_layers=0), ["config.json", "num_hidden_layers is 0"]),
    "negative layers": (config(num_hidden_layers=-1), ["config.json", "num_hidden_layers is -1"]),
    "no heads": (config(num_attention_heads=0), ["config.json", "num_attention_heads is 0"]),
    "negative heads": (config(num_key_value_heads=-2), ["config.json", "num_key_value_heads is -2"]),
    "wide": (config(intermediate_size=10**8), ["config.json", "intermediate_size is 100000000"]),
    "astronomical": (config(hidden_size=10**30), ["config.json", "hidden_size is 1000000000000000000000000000000"]),
    "vocabulary of 10^12": (config(vocab_size=10**12), ["config.json", "vocab_size is 1000000000000"]),
    "negative vocabulary": (config(vocab_size=-5), ["config.json", "vocab_size is -5"]),
    "vocabulary of 10^8": (config(vocab_size=10**8), ["config.json", "vocab_size is 100000000", "2048"]),
    "positions of 10^12": (config(max_position_embeddings=10**12), ["config.json", "max_position_embeddings is 1000000000000"]),
    "nested sizes": (config(text_config={"num_hidden_layers": -4}), ["config.json", "text_config.num_hidden_layers is -4"]),
    "size is text": (config(hidden_size="256"), ["config.json", "hidden_size"]),
    "large where no name tells": (
        config(hidden_size=50_000, intermediate_size=50_000), ["config.json", "many times what its checkpoint holds"]
    ),
    "overlapping tensors": (header(overlap), ["model.safetensors", "overlaps another"]),
    "header of 2^63": (write("model.safetensors", (2**63).to_bytes(8, "little") + b"{}"), ["model.safetensors", "truncated"]),
    "empty weights": (write("model.safetensors", b""), ["model.safetensors", "truncated"]),
    "shape that overflows": (
        header(lambda h: h[NORM].update(shape=[2**40, 2**40])), ["model.safetensors", NORM, "damaged"]
    ),
    "tensor in two files": (shards(extra=True), ["b.safetensors", NORM, "a.safetensors"]),
    "index that leads out": (shards(extra=False, place="../a.safetensors"), ["index.json", "'../a.safetensors'"]),
}  # fmt: skip


def broken(tmp_path: Path, damage: Damage) -> Path:
    """The bundled model, damaged."""
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    damage(model)
    return model


@pytest.mark.parametrize("name", ROWS)
def test_refused(tmp_path: Path, name: str) -> None:
    """The start ends with status 1 and one line that names the file and what is wrong in it, in bounded memory and time."""
    damage, says = ROWS[name]
    model = broken(tmp_path, damage)
    command = [*TGI, "serve", "--backend", "cpu", "--hostname", "127.0.0.1", "--port", "0", str(model)]
    child = subprocess.run(
        [sys.executable, "-S", "-c", MEASURED, str(SECONDS), *command],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    text = child.stderr
    assert child.returncode == 1, (child.returncode, text)
    assert "Traceback" not in text and "panicked" not in text, text
    line = text.strip().splitlines()[-1]
    assert line.startswith("tgi: error: ") and not [word for word in says if word not in line], line
    assert int(child.stdout) * 1024 < MOST_BYTES


HARMLESS: dict[str, Damage] = {
    "cut short": tokenizer(truncation={"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}),
    "cut with a stride that is none": tokenizer(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    ),
    "padded": tokenizer(
        padding={
            "strategy": {"Fixed": 10**8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 6, "pad_type_id": 0,
            "pad_token": "<|pad|>",
        }
    ),
    "special tokens of a larger sibling": added(2),
    "a token without text": added(1, content=""),
    "junk beside the model": lambda model: [
        edit("tokenizer_config.json", lambda value: value.update(model_max_length=-1, eos_token=[5], bos_token={"content": 7}))(model),
        edit("special_tokens_map.json", lambda value: value.update(bos_token=[[]], more="x" * 1000))(model),
        generation(pad_token_id="6", max_length=10**30, eos_token_id=5, temperature="hot")(model),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_served_whole(tmp_path: Path, name: str) -> None:
    """What tells a tokenizer to cut or to pad, names that the model does not know, and junk where nothing is read: prompts are served
    whole, and those special tokens are text."""
    text = "one two three four five six seven eight nine ten <extra1> "
    model = broken(tmp_path, HARMLESS[name])
    with served("--backend", "reference", str(model)) as server:
        for prompt in (text, text * 12):  # a long one goes to another process
            made = httpx.post(f"{server.url}/tokenize", json={"inputs": prompt, "add_special_tokens": False}).json()
            assert "".join(token["text"] for token in made) == prompt
            assert all(token["id"] < 2048 for token in made)
            answer = httpx.post(f"{server.url}/generate", json={"inputs": prompt, "parameters": {"max_new_tokens": 2}})
            assert answer.status_code == 200, answer.text
