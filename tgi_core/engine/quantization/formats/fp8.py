"""Checkpoints of `quant_method` fp8 (as DeepSeek's and Qwen's, and AutoFP8's for vLLM) and fbgemm_fp8: 8-bit floats with float scales.

A layer holds `weight` float8_e4m3fn [out, in] and `weight_scale_inv` or `weight_scale`: one scale, one per output, or one per block of
`weight_block_size`. In spite of its name, weight_scale_inv multiplies. Source: https://huggingface.co/deepseek-ai/DeepSeek-V3,
inference/fp8_cast_bf16.py, and transformers' integrations/finegrained_fp8.py and fbgemm_fp8.py.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_field, check_parts, check_tensor
from tgi_core.engine.quantization.formats.scales import blocks, check_scale, scaled, with_input_scale
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry

_OPTIONAL = ("input_scale", "activation_scale", "input_scale_ub")


class Fp8(Format):
    """8-bit floats with a scale per tensor, per output or per block. A static activation_scheme gives the scale of inputs, for
    kernels that round them."""

    mark = "weight_scale_inv"
    marks: tuple[str, ...] = ("weight_scale_inv", "weight_scale")
    """Names of the scales; AutoFP8 writes the second."""
    has_cache_scales = True

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`."""
        check_field("activation_scheme", settings.get("activation_scheme", "dynamic"), ("dynamic", "static"))
        self._static = settings.get("activation_scheme") == "static"
        check_field("scale_fmt", settings.get("scale_fmt") or "float", ("float", "ue8m0"))
        self._block = blocks("weight_block_size", settings.get("weight_block_size"))

    def is_mark(self, part: str) -> bool:
        """See `Format.is_mark`."""
        return part in self.marks

    def unused(self, name: str) -> bool:
        """See `Format.unused`."""
        return name.endswith((".q_scale", ".prob_scale"))

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        scale = self._scale_in(parts)
        check_parts(parts, ("weight", scale), _OPTIONAL)
        rows, columns = check_tensor(parts, "weight", ("F8_E4M3",), (None, None)).shape
        check_scale(parts, scale, (rows, columns), self._block)
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        weight = scaled(parts["weight"], parts[self._scale_in(parts)], self._block, dtype)
        return with_input_scale(weight, parts.get("input_scale", parts.get("activation_scale")) if self._static else None)

    def _scale_in(self, parts: Container[str]) -> str:
        return next(name for name in self.marks if name in parts)


class FbgemmFp8(Fp8):
    """8-bit floats with a scale per output."""

    mark = "weight_scale"
    marks = ("weight_scale",)
