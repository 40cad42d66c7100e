"""Linear layers by the native kernels, over packed weights."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgi_backend_cpu.interface import Linear
from tgi_backend_cpu.kernels import DTYPES, Arena, Kernels
from tgi_backend_cpu.packing import pack
from tgi_core.engine.quantization.weight import Weight


@dataclass(frozen=True, slots=True)
class NativeLinear:
    """A linear layer over a packed weight. An element's bits don't depend on other rows of the input."""

    kernels: Kernels
    arena: Arena
    """The memory of the packed weight."""
    packed: Linear
    dtype: torch.dtype
    shape: tuple[int, int]
    bias: Tensor | None
    """float32; the packed weight points to it."""
    num_bytes: int
    """Bytes of the packed weight, without the padding of its last panel."""

    dense = None

    def __call__(self, input: Tensor) -> Tensor:
        """See `Linear.__call__`."""
        rows, columns = self.shape
        if input.dtype is not self.dtype or input.shape[-1] != columns:
            raise ValueError(f"an input of {input.dtype} {list(input.shape)} for a layer of {self.dtype} with {columns} inputs")
        flat = input.reshape(-1, columns).contiguous()
        out = torch.empty(*input.shape[:-1], rows, dtype=self.dtype)
        self.kernels.call.tgi_linear(
            self.kernels.pool,
            int(self.dtype is torch.bfloat16),
            ctypes.byref(self.packed),
            flat.data_ptr(),
            out.data_ptr(),
            flat.shape[0],
        )
        return out


class NativeLinears:
    """The provider `native`."""

    name = "native"

    def __init__(self, kernels: Kernels | None, arena: Arena | None, reason: str) -> None:
        """`reason` says why there are no kernels."""
        self._kernels, self._arena, self._reason = kernels, arena, reason

    def probe(self) -> str:
        """See `LinearProvider.probe`."""
        return "" if self._kernels is not None else f"no native kernels: {self._reason}"

    def refusal(self, weight: Weight) -> str:
        """See `LinearProvider.refusal`. A row of bfloat16 must consist of whole units of two."""
        if weight.dtype not in DTYPES:
            return f"the dtype is {weight.dtype}"
        return "an odd number of inputs" if weight.shape[1] % 2 else ""

    def self_check(self, weight: Weight) -> str:
        """The self-check of the whole model covers it."""
        return ""

    def load(self, weight: Weight, bias: Tensor | None) -> NativeLinear:
        """See `LinearProvider.load`."""
        if self._kernels is None or self._arena is None:
            raise RuntimeError(self.probe())
        floats, before = None if bias is None else bias.float(), self._arena.num_bytes
        packed = pack(self._kernels, self._arena, [weight], floats)
        num_bytes = min(weight.dense_bytes, self._arena.num_bytes - before)
        return NativeLinear(self._kernels, self._arena, packed, weight.dtype, weight.shape, floats, num_bytes)
