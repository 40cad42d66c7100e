"""An adapter's files, checked without torch, so that damage is found at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import Adapter, InvalidModel
from tgi_core.engine.lora.config import MAX_RANK, LoraConfig, read_config
from tgi_core.engine.weights.headers import TensorEntry, read_header

WEIGHTS = "adapter_model.safetensors"

_NUMBERS = ("F64", "F32", "F16", "BF16")
_NAME = re.compile(r"base_model\.model\.(?P<module>[\w.]{1,512})\.lora_(?P<half>[AB])(\.default)?\.weight", re.ASCII)


@dataclass(frozen=True, slots=True)
class LowRank:
    """A module's two matrices: `down` [rank, in] (lora_A) and `up` [out, rank] (lora_B); `scale` multiplies their product."""

    down: TensorEntry
    up: TensorEntry
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter whose tensors fit each other; `modules` is keyed by the names that the file gives the model's modules."""

    name: str
    file: Path
    modules: dict[str, LowRank]


def open_adapter(adapter: Adapter) -> AdapterFile:
    """Read config and header. Raises InvalidModel that names the adapter, its file, and the field or tensor."""
    directory = Path(adapter.directory)
    file = directory / WEIGHTS
    try:
        config = read_config(directory)
        modules = _modules(file, read_header(file), config)
    except InvalidModel as error:
        raise InvalidModel(f"adapter {adapter.name}: {error}") from error
    return AdapterFile(adapter.name, file, modules)


def _modules(file: Path, tensors: dict[str, TensorEntry], config: LoraConfig) -> dict[str, LowRank]:
    halves: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in tensors.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise InvalidModel(f"{file}: tensor {name[:200]!r} is not a part of a LoRA adapter of linear layers")
        if entry.dtype not in _NUMBERS:
            raise InvalidModel(f"{file}: tensor {name!r} has dtype {entry.dtype}, which is not supported in adapters")
        halves.setdefault(found["module"], {})[found["half"]] = entry
    if not halves:
        raise InvalidModel(f"{file}: holds no tensors")
    return {module: _low_rank(file, module, pair, config) for module, pair in halves.items()}


def _low_rank(file: Path, module: str, pair: dict[str, TensorEntry], config: LoraConfig) -> LowRank:
    if len(pair) != 2:
        missing = "lora_B" if "A" in pair else "lora_A"
        raise InvalidModel(f"{file}: damaged: {module!r} has no {missing}")
    down, up = pair["A"], pair["B"]
    for entry in (down, up):
        if len(entry.shape) != 2 or not all(entry.shape):
            raise InvalidModel(f"{file}: tensor {entry.name!r} has shape {list(entry.shape)}, which is not a linear layer's")
    rank = down.shape[0]
    if rank > MAX_RANK:
        raise InvalidModel(f"{file}: {module!r} has rank {rank}; the largest rank that is served is {MAX_RANK}")
    if up.shape[1] != rank or config.rank_of(module) != rank:
        raise InvalidModel(
            f"{file}: damaged: {module!r} has rank {rank} in lora_A, {up.shape[1]} in lora_B and {config.rank_of(module)} in the config"
        )
    return LowRank(down, up, config.scale_of(module))
