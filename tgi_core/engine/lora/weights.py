"""The LoRA matrices of an adapter, in the layout that kernels multiply with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.lora.files import AdapterFile, LoraTensors
from tgi_core.engine.weights.headers import TensorEntry
from tgi_core.engine.weights.mapped import MappedFile

LoraWeights = tuple[Tensor, Tensor]
"""lora_A [in, rank] and lora_B [rank, out], the latter multiplied by the scale. The adapter is computed in their dtype, whatever the
model's is."""


def read_lora_weights(
    adapter: AdapterFile, targets: Iterable[LoraTensors], dtype: torch.dtype, device: torch.device
) -> list[LoraWeights]:
    """The matrices of each target module, copied to the device. Raises InvalidModel if a value is not finite."""
    file = MappedFile(adapter.file)

    def read(entry: TensorEntry) -> Tensor:
        values = file.view(entry).to(torch.float32)
        if not values.isfinite().all():
            raise adapter_error(adapter, f"tensor {entry.name!r} holds values that are not finite")
        return values

    def copied(values: Tensor) -> Tensor:
        # Always a copy: the mapping of the file is closed.
        return torch.empty(values.shape, dtype=dtype, device=device).copy_(values)

    return [(copied(read(target.lora_a).t()), copied(read(target.lora_b).t() * target.scale)) for target in targets]


def adapter_error(adapter: AdapterFile, reason: str) -> InvalidModel:
    """The error for an adapter that does not fit the model; names the adapter and its file."""
    return InvalidModel(f"adapter {adapter.name}: {adapter.file}: {reason}")


def adapters_to_check(targets: dict[str, frozenset[str]]) -> list[str]:
    """Adapters to run in the self-check, given the targets of each: few of them, which cover every target of any adapter."""
    chosen: list[str] = []
    covered: frozenset[str] = frozenset()
    for name, own in targets.items():
        if not own <= covered:
            chosen.append(name)
            covered |= own
    return chosen
