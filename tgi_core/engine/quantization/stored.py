"""The weights of a checkpoint in any format, by the names that they have in an unquantized model."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.attention.cache import CacheScales
from tgi_core.engine.quantization.cache_scales import check_entries, is_cache_scale, read_scales
from tgi_core.engine.quantization.formats import read_format
from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.rounding import head_rounding, rounded
from tgi_core.engine.quantization.weight import Dense, Weight
from tgi_core.engine.weights.checkpoint import Checkpoint, open_checkpoint
from tgi_core.engine.weights.headers import TensorEntry
from tgi_core.engine.weights.mapped import FilePlace, MappedFile
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in a checkpoint. `shape` is the weight's; `parts` are its tensors in the files, a single one if it is not quantized."""

    name: str
    shape: tuple[int, ...]
    parts: dict[str, TensorEntry]
    format: Format | None = None

    @property
    def entry(self) -> TensorEntry:
        """The first of the tensors; the only one of a weight that is not quantized."""
        return next(iter(self.parts.values()))

    @property
    def num_elements(self) -> int:
        """Elements of the weight."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in the files."""
        return sum(entry.num_bytes for entry in self.parts.values())


class StoredWeights:
    """All weights of a checkpoint, read on demand."""

    def __init__(self, checkpoint: Checkpoint, format: Format | None = None, quantize: str = "") -> None:
        """Plain weights of linear layers are rounded to `quantize`, as in OpenOptions. Raises InvalidModel for tensors that do not match
        the format."""
        self.checkpoint, self.format, self.quantize = checkpoint, format, quantize
        scales = format is not None and format.has_cache_scales
        self._cache_scales = [entry for name, entry in checkpoint.tensors.items() if scales and is_cache_scale(name)]
        check_entries(self._cache_scales)
        self.by_name = self._folded()

    @property
    def most_elements(self) -> int:
        """The most elements that a model with these weights can have while it is built: tied weights count twice, and position tables,
        which the files may lack, are small."""
        return 4 * sum(stored.num_elements for stored in self.by_name.values()) + (1 << 24)

    @cached_property
    def cache_scales(self) -> dict[int, CacheScales]:
        """Scales of an 8-bit KV cache by the number of the layer, where the checkpoint has some. Raises InvalidModel for values that are no
        scales."""
        return read_scales(self._cache_scales, self._view)

    @cached_property
    def _maps(self) -> dict[Path, MappedFile]:
        return {file: MappedFile(file) for file in self.checkpoint.files}

    def named(self, by_name: dict[str, StoredWeight]) -> Self:
        """The same files, with some of their weights under other names."""
        other = copy(self)
        other.by_name = by_name
        return other

    def tensor(self, stored: StoredWeight) -> Tensor:
        """A tensor that is not quantized: a view of the file, in the file's dtype."""
        return self._view(stored.entry)

    def weight(self, stored: StoredWeight, dtype: torch.dtype) -> Weight:
        """The weight of a linear layer, for a model that runs in `dtype`; over views of the files if possible. Raises InvalidModel for
        values that are not of the format."""
        if stored.format is None:
            return Dense.of(self._view(stored.entry).to(dtype))
        try:
            return stored.format.unpack({part: self._view(entry) for part, entry in stored.parts.items()}, dtype)
        except ValueError as error:
            raise InvalidModel(f"{stored.entry.file}: {stored.name.removesuffix('.weight')}: {error}") from error

    def linear(self, stored: StoredWeight, dtype: torch.dtype) -> Weight:
        """The same for a linear layer inside the model: rounded if weights are quantized at load."""
        if stored.format is not None or not self.quantize:
            return self.weight(stored, dtype)
        return rounded(self._view(stored.entry), self.quantize, dtype)

    def head(self, stored: StoredWeight, dtype: torch.dtype) -> Weight:
        """The same, of the output head."""
        kind = head_rounding(self.quantize)
        if stored.format is not None or not kind:
            return self.weight(stored, dtype)
        return rounded(self._view(stored.entry), kind, dtype)

    def place(self, stored: StoredWeight) -> FilePlace:
        """Where a tensor that is not quantized lies in its file."""
        return FilePlace(self._maps[stored.entry.file], stored.entry.start)

    def _view(self, entry: TensorEntry) -> Tensor:
        return self._maps[entry.file].view(entry)

    def forget(self) -> None:
        """Drop the files' pages; views read theirs again on access."""
        for file in self._maps.values():
            file.forget()

    def _folded(self) -> dict[str, StoredWeight]:
        """Tensors by name, with those of each quantized layer as one weight."""
        format, scales = self.format, {entry.name for entry in self._cache_scales}
        tensors = {name: entry for name, entry in self.checkpoint.tensors.items() if name not in scales}
        if format is None:
            return {name: _plain(name, entry) for name, entry in tensors.items()}
        located = {name: format.locate(name) for name in tensors}
        quantized: dict[str, dict[str, TensorEntry]] = {layer: {} for layer, part in located.values() if format.is_mark(part)}
        found: dict[str, StoredWeight] = {}
        for name, entry in tensors.items():
            layer, part = located[name]
            if layer in quantized and part != "bias":
                quantized[layer][part] = entry
            elif not format.unused(name):
                found[name] = _plain(name, entry)
        return found | {format.weight_name(layer): self._quantized(layer, parts, format) for layer, parts in quantized.items()}

    def _quantized(self, layer: str, parts: dict[str, TensorEntry], format: Format) -> StoredWeight:
        try:
            return StoredWeight(format.weight_name(layer), format.shape(parts, self._view), parts, format)
        except ValueError as error:
            raise InvalidModel(f"{next(iter(parts.values())).file}: {layer}: {error}") from error


def open_weights(directory: Path, quantize: str = "") -> StoredWeights:
    """The weights of a model directory, in the format that its config.json names; `quantize` as in OpenOptions. Raises InvalidModel."""
    checkpoint, file = open_checkpoint(directory), directory / "config.json"
    try:
        config = read_json(file)
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    return StoredWeights(checkpoint, read_format(config, directory), quantize)


def _plain(name: str, entry: TensorEntry) -> StoredWeight:
    """A tensor that is a weight itself. Raises InvalidModel for codes: without scales they would be wrong numbers."""
    if name.endswith(".weight") and entry.dtype not in ("F64", "F32", "F16", "BF16"):
        raise InvalidModel(f"{entry.file}: tensor {name!r} holds codes ({entry.dtype}), but no scales for them")
    return StoredWeight(name, entry.shape, {name: entry})
