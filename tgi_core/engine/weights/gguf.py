"""The tensors of a GGUF file, by the model's names."""

from __future__ import annotations

from pathlib import Path

from tgi_core.backend import InvalidModel
from tgi_core.engine.weights.headers import TensorEntry
from tgi_core.errors import StartupError
from tgi_core.gguf.header import BLOCKS, GgufFile, read_gguf
from tgi_core.gguf.names import NamedTensor, named_tensors
from tgi_core.model_files import read_json

PAIRS, PLUS_ONE = "/pairs", "/plus_one"
"""Suffixes of part names, by what `NamedTensor` says."""

_PLAIN = ("F32", "F16", "BF16")
_BLOCKS = {name: (elements, size) for name, elements, size in BLOCKS.values()}


def read_gguf_header(directory: Path) -> dict[str, TensorEntry]:
    """The tensors of model.gguf. A quantized one, or one whose values differ, is named `LAYER.TYPE` with the ends above instead of
    `LAYER.weight`; its blocks are bytes [out, bytes of a row]. Raises InvalidModel naming file and tensor."""
    try:
        file = read_gguf(directory / "model.gguf")
        named = named_tensors(file, str(read_json(directory / "config.json").get("model_type")))
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    found: dict[str, TensorEntry] = {}
    for each in named:
        entry = _entry(file, each)
        if entry.name in found:
            raise InvalidModel(f"{file.path}: tensor {each.tensor.name!r} has the name of another in this model")
        found[entry.name] = entry
    return found


def _entry(file: GgufFile, each: NamedTensor) -> TensorEntry:
    tensor, (layer, _, leaf) = each.tensor, each.name.rpartition(".")
    plain, shape = tensor.type in _PLAIN, tensor.shape
    if plain and not each.pairs and not each.plus_one:
        return TensorEntry(file.path, each.name, tensor.type, shape, tensor.start, tensor.end)
    if leaf != "weight":
        raise InvalidModel(f"{file.path}: tensor {tensor.name!r} is {tensor.type}; supported are {', '.join(_PLAIN)}")
    part = tensor.type + (PAIRS if each.pairs else "") + (PLUS_ONE if each.plus_one else "")
    if plain:
        return TensorEntry(file.path, f"{layer}.{part}", tensor.type, shape, tensor.start, tensor.end)
    elements, size = _BLOCKS[tensor.type]
    if len(shape) != 2:
        raise InvalidModel(f"{file.path}: tensor {tensor.name!r} is {tensor.type} {list(shape)}, not a matrix")
    return TensorEntry(file.path, f"{layer}.{part}", "U8", (shape[0], shape[1] // elements * size), tensor.start, tensor.end)
