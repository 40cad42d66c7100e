"""An adapter's matrices as they are multiplied with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tgi_core.backend import InvalidModel
from tgi_core.engine.lora.files import AdapterFile, LowRank
from tgi_core.engine.weights.headers import TensorEntry
from tgi_core.engine.weights.mapped import MappedFile

Products = tuple[Tensor, Tensor]
"""Two matrices [in, rank] and [rank, out], the scale multiplied in. Their dtype is that of the sums, whatever the model's is."""


def read_products(adapter: AdapterFile, low_ranks: Iterable[LowRank], dtype: torch.dtype, device: torch.device) -> list[Products]:
    """The matrices as layers multiply by them. Raises InvalidModel for numbers that are not finite."""
    file = MappedFile(adapter.file)

    def read(entry: TensorEntry) -> Tensor:
        values = file.view(entry).to(torch.float32)
        if not values.isfinite().all():
            raise refused(adapter, f"tensor {entry.name!r} holds numbers that are not finite")
        return values

    def moved(values: Tensor) -> Tensor:
        # A copy in any case: what the file maps goes away.
        return torch.empty(values.shape, dtype=dtype, device=device).copy_(values)

    return [(moved(read(item.down).t()), moved(read(item.up).t() * item.scale)) for item in low_ranks]


def refused(adapter: AdapterFile, why: str) -> InvalidModel:
    """An adapter that does not fit, by its name and file."""
    return InvalidModel(f"adapter {adapter.name}: {adapter.file}: {why}")


def probes(changed: dict[str, frozenset[str]]) -> list[str]:
    """Adapters to prove a runner with, of what each changes: few, and among them everything that any of them does."""
    chosen: list[str] = []
    proven: frozenset[str] = frozenset()
    for name, places in changed.items():
        if not places <= proven:
            chosen.append(name)
            proven |= places
    return chosen
