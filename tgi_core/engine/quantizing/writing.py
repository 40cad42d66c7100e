"""Writes a checkpoint with some of its layers quantized, in files of bounded size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tgi_core.engine.quantization.stored import StoredWeights
from tgi_core.engine.quantizing.schemes import Tensors

FILE_BYTES = 5 << 30
_COPIED = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "README*")
_OWN = ("config.json", "model.safetensors.index.json")


def write_checkpoint(
    source: Path,
    to: Path,
    stored: StoredWeights,
    replaced: Mapping[str, Tensors],
    config: dict[str, Any],
    done: Callable[[int, int], None],
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write the tensors of a checkpoint to a new directory, with those in `replaced` in place of some of them; then `config` and copies
    of the tokenizer's and other files. `done` gets the numbers of written weights and of all weights."""
    files: list[tuple[Path, list[str]]] = []
    batch: Tensors = {}
    total = 0

    def flush() -> None:
        file = to / f"part-{len(files)}.safetensors"
        save_file(batch, file, metadata={"format": "pt"})
        files.append((file, list(batch)))
        batch.clear()

    for number, name, tensor in _tensors(stored, replaced):
        if batch and sum(each.nbytes for each in batch.values()) + tensor.nbytes > file_bytes:
            flush()
        batch[name] = tensor
        total += tensor.nbytes
        done(number, len(stored.by_name))
    flush()
    _name(to, files, total)
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.name not in _OWN and file.is_file():
                shutil.copy(file, to)
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _tensors(stored: StoredWeights, replaced: Mapping[str, Tensors]) -> Iterator[tuple[int, str, Tensor]]:
    """The tensors to write, each with the number of its weight."""
    for number, (name, weight) in enumerate(stored.by_name.items(), 1):
        if name in replaced:
            yield from ((number, part, tensor) for part, tensor in replaced[name].items())
        else:
            yield number, name, stored.tensor(weight).clone()


def _name(to: Path, files: list[tuple[Path, list[str]]], total: int) -> None:
    """One file has the name that loaders look for; several get an index."""
    if len(files) == 1:
        files[0][0].rename(to / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, (file, names) in enumerate(files, 1):
        final = f"model-{number:05}-of-{len(files):05}.safetensors"
        file.rename(to / final)
        places |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (to / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
