"""Damaged and incomplete checkpoints: one line that names file and tensor, never a random weight."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import PROMPTS, Schedule, open_cpu, save_tiny, silent
from tgi_core.backend import InvalidModel
from tgi_core.engine.models import loading
from tgi_core.engine.models.build import ModelSource, read_config
from tgi_core.engine.weights.headers import read_header

Damage = Callable[[Path], object]


def rewrite(change: Callable[[dict[str, Any]], None]) -> Damage:
    """A change to the header of the only file, the data staying as it is."""

    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        change(header)
        new = json.dumps(header).encode()
        file.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + length :])

    return damage


def retensor(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    """A change to the tensors of the only file."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def cut(to: int) -> Damage:
    """The file's first bytes alone."""
    return lambda folder: with_bytes(folder, lambda raw: raw[:to])


def with_bytes(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the only file as a whole."""
    file = folder / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))


def edit_config(folder: Path, **fields: Any) -> None:
    """Change fields of config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


NORM = "model.norm.weight"


def twice(raw: bytes) -> bytes:
    """One tensor described two times."""
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip()
    described = json.dumps({NORM: json.loads(header)[NORM]})[1:-1].encode()
    header = header[:-1] + b"," + described + b"}"
    return len(header).to_bytes(8, "little") + header + raw[8 + length :]


CORPUS: dict[str, tuple[Damage, str]] = {
    "empty": (cut(0), "model.safetensors: truncated"),
    "short": (cut(6), "model.safetensors: truncated"),
    "half a header": (cut(60), "model.safetensors: truncated"),
    "half the data": (cut(50_000), "model.safetensors: truncated: tensor"),
    "one byte less": (cut(-1), "truncated"),
    "tail": (lambda f: with_bytes(f, lambda raw: raw + b"xx"), "2 bytes after"),
    "not JSON": (lambda f: with_bytes(f, lambda raw: (4).to_bytes(8, "little") + b"nope"), "not JSON"),
    "not an object": (lambda f: with_bytes(f, lambda raw: (2).to_bytes(8, "little") + b"[]"), "not a JSON object"),
    "huge header": (lambda f: with_bytes(f, lambda raw: (2**60).to_bytes(8, "little") + b"{}"), "truncated"),
    "dtype": (rewrite(lambda h: h[NORM].update(dtype="F4")), f"tensor '{NORM}' has dtype 'F4'"),
    "shape": (rewrite(lambda h: h[NORM].update(shape=[63])), f"tensor '{NORM}' of F32"),
    "negative": (rewrite(lambda h: h[NORM].update(shape=[-64])), f"tensor '{NORM}' are not sizes"),
    "offsets": (rewrite(lambda h: h[NORM].update(data_offsets=[0, 2**70])), f"tensor '{NORM}' are not sizes"),
    "beyond": (rewrite(lambda h: h[NORM].update(data_offsets=[2**40, 2**40 + 256])), f"tensor '{NORM}' ends"),
    "overlap": (rewrite(lambda h: h[NORM].update(data_offsets=[0, 256])), "overlaps"),
    "no description": (rewrite(lambda h: h.update({NORM: 3})), f"tensor '{NORM}'"),
    "missing tensor": (retensor(lambda t: t.pop(NORM)), NORM),
    "wrong shape": (retensor(lambda t: t.update({NORM: torch.ones(32)})), f"tensor '{NORM}' has shape [32]"),
    "no file": (lambda f: (f / "model.safetensors").unlink(), "holds neither model.safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: not found"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "config.json: invalid JSON"),
    "unknown type": (lambda f: (f / "config.json").write_text('{"model_type": "klingon"}'), "'klingon'"),
    "impossible config": (
        lambda f: edit_config(f, num_attention_heads=5),
        "'llama' cannot be" if TRANSFORMERS_5 else "q_proj.weight' has shape",
    ),
    "no heads": (lambda f: edit_config(f, num_attention_heads=0), "config.json: num_attention_heads is 0"),
    "nested": (lambda f: edit_config(f, text_config={"hidden_size": -1}), "config.json: text_config.hidden_size is -1"),
    "many layers": (
        lambda f: edit_config(f, num_hidden_layers=10**5),
        "num_hidden_layers is 100000, but the tensors of model.safetensors",
    ),
    "wide": (
        lambda f: edit_config(f, intermediate_size=10**6),
        "intermediate_size is 1000000, but no tensor of model.safetensors",
    ),
    "experts": (lambda f: edit_config(f, hidden_size=60000, intermediate_size=60000), "many times what its checkpoint holds"),
    "twice": (lambda f: with_bytes(f, twice), f"its header names '{NORM}' twice"),
    "deep config": (lambda f: (f / "config.json").write_text('{"a":' * 100_000), "nested too deeply"),
    "no type": (lambda f: (f / "config.json").write_text("{}"), "has no model_type"),
    "an encoder": (lambda f: (f / "config.json").write_text('{"model_type": "vit"}'), "not a causal language model"),
}


@pytest.mark.parametrize("name", CORPUS)
def test_damage(name: str, llama: Path, tmp_path: Path) -> None:
    """Every damage is InvalidModel in one line that names the file or the tensor."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    damage, message = CORPUS[name]
    damage(folder)
    with pytest.raises(InvalidModel) as caught:
        open_cpu(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def shard(folder: Path) -> dict[str, str]:
    """Split the only file in two behind an index; returns the weight map."""
    tensors = load_file(folder / "model.safetensors")
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_shards(llama: Path, tmp_path: Path) -> None:
    """A sharded checkpoint makes the same tokens as the single file."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    shard(folder)
    made = []
    for directory in (llama, folder):
        run = Schedule(*open_cpu(directory))
        run.step(run.request(1, PROMPTS[0], 9))
        run.step()
        made.append(run.tokens[1])
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f, m: (f / "part-1.safetensors").unlink(), "names the file 'part-1.safetensors'"),
        (lambda f, m: m.update({NORM: "../../etc/passwd"}), "names the file '../../etc/passwd'"),
        (lambda f, m: m.update({"model.absent": "part-0.safetensors"}), "lacks tensor 'model.absent'"),
        (lambda f, m: m.clear(), "has no weight_map"),
        (
            lambda f, m: save_file({**load_file(f / "part-1.safetensors"), NORM: torch.ones(64)}, f / "part-1.safetensors"),
            "holds too",
        ),
    ],
)
def test_damaged_index(change: Callable[[Path, dict[str, str]], None], message: str, llama: Path, tmp_path: Path) -> None:
    """An index that names a file or tensor that is not there is refused, and cannot lead out of the directory."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    places = shard(folder)
    change(folder, places)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(InvalidModel) as caught:
        open_cpu(folder)
    assert message in str(caught.value)


def test_progress_and_dtype(llama: Path) -> None:
    """Progress counts bytes up to the total, and weights arrive in the dtype asked for."""
    seen: list[tuple[int, int]] = []
    source = ModelSource(llama, read_config(llama), torch.bfloat16)
    model = source.build(lambda what, done, total, unit: seen.append((done, total)))
    total = sum(entry.num_bytes for entry in read_header(llama / "model.safetensors").values())
    assert seen[0] == (0, total) and seen[-1] == (total, total) and seen == sorted(seen) and len(seen) > 10
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("model_type", ["gpt2", "mixtral"])
def test_values_arrive(model_type: str, tmp_path: Path) -> None:
    """Every parameter is the checkpoint's: read by us (GPT-2), or converted by transformers on the way in (Mixtral)."""
    from transformers import AutoModelForCausalLM

    save_tiny(model_type, tmp_path)
    ours = ModelSource(tmp_path, read_config(tmp_path), torch.float32).build(silent)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def test_tied_embeddings_share_memory(tmp_path: Path) -> None:
    """A tied head is the embedding itself, though the file holds it once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64, tie_word_embeddings=True
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert "lm_head.weight" not in read_header(tmp_path / "model.safetensors")
    model = ModelSource(tmp_path, read_config(tmp_path), torch.float32).build(silent)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_renamed_tensors_are_loaded_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-NeoX's files call the output head `embed_out`; transformers, which would keep all files mapped, does not load them."""
    folder = save_tiny("gpt_neox", tmp_path / "model")
    assert "embed_out.weight" in load_file(folder / "model.safetensors")
    monkeypatch.setattr(loading, "load_through_transformers", None)
    model = ModelSource(folder, read_config(folder), torch.float32).build(silent)
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
