"""A checkpoint: one safetensors file, several behind an index, or a GGUF file. Headers are checked without torch, so that damaged ones are
refused early."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import InvalidModel
from tgi_core.engine.weights.gguf import read_gguf_header
from tgi_core.engine.weights.headers import TensorEntry, read_header
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

SINGLE = "model.safetensors"
GGUF = "model.gguf"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The validated tensors of a model directory, by name."""

    directory: Path
    tensors: dict[str, TensorEntry]

    @property
    def file(self) -> Path:
        """The file to name in messages: the single file, or the index of several."""
        single = self.directory / SINGLE
        gguf = self.directory / GGUF
        return single if single.exists() else gguf if gguf.exists() else self.directory / INDEX

    @property
    def num_bytes(self) -> int:
        """Size of all tensors in the files."""
        return sum(entry.num_bytes for entry in self.tensors.values())

    @property
    def files(self) -> list[Path]:
        """The files, sorted."""
        return sorted({entry.file for entry in self.tensors.values()})


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read and check all headers. Raises InvalidModel that names the file."""
    if (directory / SINGLE).exists():
        return Checkpoint(directory, read_header(directory / SINGLE))
    if (directory / GGUF).exists():
        return Checkpoint(directory, read_gguf_header(directory))
    if (directory / INDEX).exists():
        return Checkpoint(directory, _read_sharded(directory))
    raise InvalidModel(f"{directory}: holds neither {SINGLE} nor {INDEX}")


def _read_sharded(directory: Path) -> dict[str, TensorEntry]:
    index = directory / INDEX
    try:
        places = read_json(index).get("weight_map")
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    if not isinstance(places, dict) or not places:
        raise InvalidModel(f"{index}: has no weight_map")
    headers: dict[str, dict[str, TensorEntry]] = {}
    owners: dict[str, str] = {}
    for file in sorted(set(map(str, places.values()))):
        # A name with a slash could lead out of the model's directory.
        if Path(file).name != file or not (directory / file).is_file():
            raise InvalidModel(f"{index}: names the file {file!r}, which is not in {directory}")
        headers[file] = read_header(directory / file)
        for name in headers[file]:
            if (first := owners.setdefault(name, file)) != file:
                raise InvalidModel(f"{directory / file}: holds tensor {name!r}, which {first} holds too")
    for name, file in places.items():
        if name not in headers[str(file)]:
            raise InvalidModel(f"{directory / str(file)}: lacks tensor {name!r}, which {INDEX} places there")
    return {name: headers[str(file)][name] for name, file in places.items()}
