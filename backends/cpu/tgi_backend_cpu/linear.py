"""Linear layers with packed weights: for the native kernels, else for oneDNN."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tgi_backend_cpu.kernels import DTYPES, Arena, Kernels
from tgi_core.engine.models.linear import PlainLinear
from tgi_core.engine.models.merging import absent_weight


class NativeLinear(nn.Module):
    """`nn.Linear` over a weight packed for the native kernels. An element's bits don't depend on the other rows."""

    def __init__(self, kernels: Kernels, arena: Arena, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.weight = absent_weight(weight)
        self._floats = None if bias is None else bias.float()
        self._kernels, self._arena = kernels, arena
        self._packed = kernels.pack(arena, [weight.contiguous()], self._floats)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        dtype = self.weight.dtype
        if input.dtype is not dtype or input.shape[-1] != self.in_features:
            raise ValueError(
                f"an input of {input.dtype} {list(input.shape)} for a layer of {dtype} with {self.in_features} inputs"
            )
        flat = input.reshape(-1, self.in_features).contiguous()
        out = torch.empty(*input.shape[:-1], self.out_features, dtype=dtype)
        self._kernels.call.tgi_linear(
            self._kernels.pool,
            int(dtype is torch.bfloat16),
            ctypes.byref(self._packed),
            flat.data_ptr(),
            out.data_ptr(),
            flat.shape[0],
        )
        return out


class PackedLinear(nn.Module):
    """`nn.Linear` over a weight that oneDNN has reordered.

    Measured on Zen 4 with 2 threads, 576 → 3072: bfloat16 72 instead of 125 µs for one token and 286 instead of 353 for 32; float32
    521 instead of 1370 µs for 32, since torch's own float32 product leaves AVX-512 unused there.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.weight = absent_weight(weight)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs and computes this dtype here, and gets it right."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    weight, input = torch.linspace(-1, 1, 48 * 32).view(48, 32).to(dtype), torch.linspace(-1, 1, 64).view(2, 32).to(dtype)
    try:
        found = PackedLinear(weight, None)(input)
    except (RuntimeError, NotImplementedError):
        return False
    return torch.allclose(found.float(), F.linear(input.float(), weight.float()), rtol=2e-2, atol=2e-2)


def linear(weight: Tensor, bias: Tensor | None, kernels: Kernels | None = None, arena: Arena | None = None) -> nn.Module:
    """The fastest linear layer for a weight. Natively a row of bfloat16 must be whole units of two."""
    if kernels is not None and arena is not None and weight.dtype in DTYPES and weight.shape[1] % 2 == 0:
        return NativeLinear(kernels, arena, weight, bias)
    return PackedLinear(weight, bias) if can_pack(weight.dtype) else PlainLinear(weight, bias)
