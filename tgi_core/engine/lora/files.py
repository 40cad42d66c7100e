"""An adapter's files, checked without torch, so that damaged ones are refused early."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import Adapter, InvalidModel
from tgi_core.engine.lora.config import MAX_RANK, LoraConfig, read_config
from tgi_core.engine.weights.headers import TensorEntry, read_header

WEIGHTS = "adapter_model.safetensors"

_DTYPES = ("F64", "F32", "F16", "BF16")
_NAME = re.compile(r"base_model\.model\.(?P<module>[\w.]{1,512})\.lora_(?P<half>[AB])(\.default)?\.weight", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoraTensors:
    """One target module's tensors: `lora_a` [rank, in] and `lora_b` [out, rank]. The module's weight changes by scale · lora_b · lora_a."""

    lora_a: TensorEntry
    lora_b: TensorEntry
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A checked adapter. `modules` holds the tensors of each target module, by the module's name in the file."""

    name: str
    file: Path
    modules: dict[str, LoraTensors]


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


def _modules(file: Path, tensors: dict[str, TensorEntry], config: LoraConfig) -> dict[str, LoraTensors]:
    halves: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in tensors.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise InvalidModel(f"{file}: tensor {name[:200]!r} is not a part of a LoRA adapter of linear layers")
        if entry.dtype not in _DTYPES:
            raise InvalidModel(f"{file}: tensor {name!r} has dtype {entry.dtype}, which is not supported in adapters")
        halves.setdefault(found["module"], {})[found["half"]] = entry
    if not halves:
        raise InvalidModel(f"{file}: holds no tensors")
    return {module: _lora_tensors(file, module, pair, config) for module, pair in halves.items()}


def _lora_tensors(file: Path, module: str, pair: dict[str, TensorEntry], config: LoraConfig) -> LoraTensors:
    if len(pair) != 2:
        missing = "lora_B" if "A" in pair else "lora_A"
        raise InvalidModel(f"{file}: damaged: {module!r} has no {missing}")
    lora_a, lora_b = pair["A"], pair["B"]
    for entry in (lora_a, lora_b):
        if len(entry.shape) != 2 or not all(entry.shape):
            raise InvalidModel(f"{file}: tensor {entry.name!r} has shape {list(entry.shape)}, which is not a linear layer's")
    rank = lora_a.shape[0]
    if rank > MAX_RANK:
        raise InvalidModel(f"{file}: {module!r} has rank {rank}; the largest rank that is served is {MAX_RANK}")
    if lora_b.shape[1] != rank or config.rank_of(module) != rank:
        raise InvalidModel(
            f"{file}: damaged: {module!r} has rank {rank} in lora_A, {lora_b.shape[1]} in lora_B and {config.rank_of(module)} in the config"
        )
    return LoraTensors(lora_a, lora_b, config.scale_of(module))
