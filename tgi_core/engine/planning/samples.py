"""Bytes of weights as a device's kernels keep them, measured on random values: only their sizes are known before they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.quantization.rounding import rounded
from tgi_core.engine.quantization.stored import StoredWeight
from tgi_core.engine.quantization.weight import Dense, Weight
from tgi_core.engine.weights.headers import TensorEntry
from tgi_core.engine.weights.mapped import DTYPES

ROWS = 1024
"""Rows of a sample at most; all rows of a weight take the same memory."""
SPREAD = 0.02
"""Standard deviation of the values, about that of trained weights: how well they compress depends on it."""


class WeightSamples:
    """Measures weights of a model that runs in `dtype`, by loading samples into `linears`."""

    def __init__(self, linears: Linears, dtype: torch.dtype, quantize: str) -> None:
        """`quantize` as in OpenOptions."""
        self._linears, self._dtype, self._quantize = linears, dtype, quantize
        self._shares: dict[object, float] = {}
        self._generator = torch.Generator().manual_seed(0)

    def plain_bytes(self, shape: tuple[int, int], inner: bool) -> int:
        """Bytes of a plain weight [out, in]; `inner` ones are rounded if weights are quantized at load."""
        return self._num_bytes(shape, (shape[1], inner), lambda: self._plain(shape, inner))

    def stored_bytes(self, stored: StoredWeight, inner: bool) -> int:
        """The same for a weight in a checkpoint, in any format."""
        shape = stored.shape[0], stored.shape[1]
        if stored.format is None:
            return self.plain_bytes(shape, inner)
        kinds = tuple((part, entry.dtype, entry.shape) for part, entry in stored.parts.items())
        return self._num_bytes(shape, kinds, lambda: self._unpacked(stored))

    def _num_bytes(self, shape: tuple[int, int], kind: object, sample: Callable[[], Weight]) -> int:
        if kind not in self._shares:
            weight = sample()
            self._shares[kind] = self._linears.load(weight).num_bytes / weight.dense_bytes
        return round(self._shares[kind] * shape[0] * shape[1] * self._dtype.itemsize)

    def _plain(self, shape: tuple[int, int], inner: bool) -> Weight:
        matrix = torch.randn(min(shape[0], ROWS), shape[1], generator=self._generator) * SPREAD
        if inner and self._quantize:
            return rounded(matrix, self._quantize, self._dtype)
        return Dense.of(matrix.to(self._dtype))

    def _unpacked(self, stored: StoredWeight) -> Weight:
        """A weight of random codes; a dense one if its format refuses those."""
        try:
            if stored.format is None:
                raise ValueError("not quantized")
            return stored.format.unpack(self._parts(stored.parts, stored.shape[1]), self._dtype)
        except (ValueError, RuntimeError):
            return self._plain((stored.shape[0], stored.shape[1]), inner=False)

    def _parts(self, entries: Mapping[str, TensorEntry], columns: int) -> dict[str, Tensor]:
        groups = max((entry.shape[0] for part, entry in entries.items() if "scale" in part and entry.shape), default=1)
        return {
            part: torch.arange(columns) // -(-columns // groups) if part == "g_idx" else self._random(entry)
            for part, entry in entries.items()
        }

    def _random(self, entry: TensorEntry) -> Tensor:
        dtype = DTYPES[entry.dtype]
        if dtype.is_floating_point:
            return torch.full(entry.shape, SPREAD).to(dtype)
        raw = torch.randint(0, 256, (entry.num_bytes,), dtype=torch.uint8, generator=self._generator)
        return raw.view(dtype).view(entry.shape)
