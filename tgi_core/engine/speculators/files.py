"""The files of a speculator: config values, and tensors by name, checked before they are used."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.weights.headers import TensorEntry, read_header
from tgi_core.engine.weights.mapped import MappedFile
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

CONFIG = "config.json"
MOST = 16
"""Maximum number of tokens that are guessed for a row."""

_DTYPES = ("F32", "F16", "BF16")
_INTEGERS = ("I64", "I32")


class SpeculatorConfig:
    """A speculator's config.json."""

    def __init__(self, directory: Path) -> None:
        """Raises InvalidModel for a file that is missing or damaged."""
        self.file = directory / CONFIG
        try:
            self.values: dict[str, Any] = read_json(self.file)
        except StartupError as error:
            raise InvalidModel(f"speculator: {error}") from error

    def number(self, name: str, most: int, default: int | None = None) -> int:
        """A number from 1 to `most`. Raises InvalidModel that names the field."""
        value = self.values.get(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise InvalidModel(f"speculator: {self.file}: {name} must be a number from 1 to {most}, not {str(value)[:40]!r}")
        return value

    def switch(self, name: str) -> bool:
        """A boolean, false if it is missing. Raises InvalidModel that names the field."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise InvalidModel(f"speculator: {self.file}: {name} must be true or false, not {str(value)[:40]!r}")
        return value


class SpeculatorTensors:
    """The tensors of safetensors files."""

    def __init__(self, files: Iterable[Path], dtype: torch.dtype) -> None:
        """`dtype` is that of the tensors that `tensor` returns. Raises InvalidModel for a damaged file."""
        self._files, self._dtype = sorted(files), dtype
        self._entries: dict[str, TensorEntry] = {}
        self._maps: dict[Path, MappedFile] = {}
        for file in self._files:
            try:
                self._entries |= read_header(file)
            except InvalidModel as error:
                raise InvalidModel(f"speculator: {error}") from error
            self._maps[file] = MappedFile(file)

    @staticmethod
    def files(directory: Path) -> list[Path]:
        """The safetensors files of a directory. Raises InvalidModel if there are none."""
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            raise InvalidModel(f"speculator: {directory}: holds no safetensors")
        return found

    @property
    def names(self) -> Iterable[str]:
        """The names of all tensors."""
        return self._entries

    @property
    def place(self) -> Path:
        """The first file, which errors about all of them name."""
        return self._files[0]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape. Raises InvalidModel that names file and tensor."""
        return self._view(name, shape, _DTYPES).to(self._dtype)

    def integers(self, name: str, *shape: int) -> Tensor:
        """A tensor int64 of this shape. Raises InvalidModel that names file and tensor."""
        return self._view(name, shape, _INTEGERS).to(torch.int64)

    def _view(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Tensor:
        entry = self._entries.get(name)
        if entry is None:
            raise InvalidModel(f"speculator: {self.place}: lacks tensor {name!r}")
        if entry.shape != shape or entry.dtype not in dtypes:
            found = f"{entry.dtype} {list(entry.shape)}"
            wanted = f"{dtypes[0]} {list(shape)}" if entry.shape == shape else str(list(shape))
            raise InvalidModel(f"speculator: {entry.file}: tensor {name!r} is {found}, where {wanted} fits the model")
        return self._maps[entry.file].view(entry)
