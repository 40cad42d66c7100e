"""Damaged quantized checkpoints of every format: refused in one line, or their numbers are still right."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.quantized_files import Tensors, write_quantized
from tests.engine.test_formats import FORMATS
from tests.engine.tiny_models import open_cpu
from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.stored import open_weights

VARIANTS = 10
"""Damaged copies of each format's checkpoint."""

Damage = Callable[[Path, Tensors, str, random.Random], object]
"""Changes a checkpoint, or its loaded tensors at one name."""


def drop(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """A tensor is missing."""
    del tensors[name]


def grow(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """A tensor that the format does not have."""
    tensors[name + "_more"] = torch.zeros(3)


def cut(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Fewer rows."""
    found = tensors[name]
    if found.dim() and found.shape[0] > 1:
        tensors[name] = found[: rng.randrange(1, found.shape[0])].contiguous()


def turn(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Another shape of as many elements."""
    tensors[name] = tensors[name].reshape(rng.choice(((-1,), (1, -1), (-1, 1)))).contiguous()


def retype(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Another dtype."""
    others = {torch.int64, torch.float64, torch.int16, torch.bool} - {tensors[name].dtype}
    tensors[name] = torch.zeros(tensors[name].shape, dtype=rng.choice(sorted(others, key=str)))


def infinite(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Values that are no numbers."""
    if tensors[name].is_floating_point() and tensors[name].itemsize > 1:
        tensors[name] = torch.full_like(tensors[name], rng.choice((float("nan"), float("inf"))))


def noise(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Another byte among the values."""
    flat = tensors[name].flatten().view(torch.uint8).clone()
    flat[rng.randrange(flat.numel())] = rng.randrange(256)
    tensors[name] = flat.view(tensors[name].dtype).view(tensors[name].shape)


def field(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Another value in the settings."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    settings: dict[str, Any] = config["quantization_config"]
    settings[rng.choice(sorted(settings))] = rng.choice((None, -7, 5, 1e9, "x" * 5000, [], {"a": 1}, [0, 0], True))
    file.write_text(json.dumps(config))


def header(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """Another byte in the header of the file."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[rng.randrange(8 + int.from_bytes(data[:8], "little"))] = rng.randrange(256)
    file.write_bytes(data)


def short(folder: Path, tensors: Tensors, name: str, rng: random.Random) -> None:
    """The file ends early."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: -rng.randrange(1, 4000)])


KINDS: tuple[Damage, ...] = (drop, grow, cut, turn, retype, infinite, noise, field, header, short)


def numbers(folder: Path) -> dict[str, Tensor]:
    """All weights, dequantized."""
    stored = open_weights(folder)
    return {
        name: stored.weight(weight, torch.float32).dequantize() if weight.format else stored.tensor(weight).clone()
        for name, weight in stored.by_name.items()
    }


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_one_line(name: str, llama: Path, tmp_path: Path) -> None:
    """A damaged checkpoint is refused in one line that names its file, or it still means the same numbers; nothing else is raised. Only
    a change among the values can go unnoticed, and it stays in its tensor."""
    quantized, _ = write_quantized(llama, tmp_path, *FORMATS[name](), layers=r"layers.0.*_proj\.weight")
    sound, rng = numbers(quantized), random.Random(name)
    whole = load_file(quantized / "model.safetensors")
    plain = [name for name, value in whole.items() if name in sound and value.dtype is torch.float32]
    layers = sorted(name for name in whole if "layers.0." in name and "_proj." in name and name not in plain)
    for number in range(VARIANTS):
        folder, damage = tmp_path / str(number), KINDS[number % len(KINDS)]
        shutil.copytree(quantized, folder)
        tensors, where = load_file(folder / "model.safetensors"), rng.choice(layers)
        damage(folder, tensors, where, rng)
        if damage not in (header, short, field):
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        said = refusal(folder, sound, where if damage is noise else "")
        assert said or damage not in (grow, short), damage
        assert "\n" not in said and len(said) < 400, damage


def refusal(folder: Path, sound: dict[str, Tensor], changed: str) -> str:
    """What is said of a checkpoint; nothing if its numbers are the sound ones, but for those of a tensor that was changed."""
    try:
        found = numbers(folder)
        if {name: each.shape for name, each in found.items()} != {name: each.shape for name, each in sound.items()}:
            # names and shapes are compared with the model's
            open_cpu(folder, dtype="float32")
    except InvalidModel as error:
        assert str(folder) in str(error)
        return str(error)
    for name, value in sound.items():
        if changed and name.startswith(changed.rpartition("_proj.")[0]):
            assert found[name].isfinite().all(), name
        else:
            assert torch.equal(found[name], value), name
    return ""
