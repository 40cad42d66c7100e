"""Checkpoints of `quant_method` compressed-tensors, as llm-compressor writes them: 8-bit or 4-bit integer weights.

A layer holds codes and `weight_scale` [out, groups], [out, 1] or [1]; the weight is code · scale. Codes are `weight` int8 [out, in], or
`weight_packed` int32 [out, in · bits / 32], lowest bits first, offset by half their range. Source:
https://github.com/vllm-project/compressed-tensors, its compressors of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.weight import Scaled, Weight
from tgi_core.engine.weights.headers import TensorEntry

_BITS = {"int-quantized": (8,), "naive-quantized": (8,), "pack-quantized": (4, 8)}
"""Supported bits of a code, by the config's name of the format."""

_WEIGHTS = {"type": ("int",), "symmetric": (True,), "strategy": ("channel", "tensor", "group")}
"""Fields of a group's `weights` and the values that are supported."""

_ABSENT = ("actorder", "block_structure")


class CompressedTensors(Format):
    """Integers and their scales. Inputs are not quantized, and a config that asks for that is refused."""

    mark = "weight_scale"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`. All layers have one format and one number of bits."""
        stored, bits = settings.get("format"), None
        _check("format", stored, tuple(_BITS))
        self._packed = stored == "pack-quantized"
        _check("quantization_status", settings.get("quantization_status", "compressed"), ("compressed",))
        _check("kv_cache_scheme", settings.get("kv_cache_scheme"), (None,))
        _check("sparsity_config", settings.get("sparsity_config") or None, (None,))
        for name, group in settings["config_groups"].items():
            at = f"config_groups.{name}"
            for part in ("input_activations", "output_activations"):
                _check(f"{at}.{part}", group.get(part), (None,))
            _check(f"{at}.format", group.get("format") or stored, (stored,))
            _check(f"{at}.weights.num_bits", group["weights"].get("num_bits"), _BITS[str(stored)] if bits is None else (bits,))
            for field, values in _WEIGHTS.items():
                _check(f"{at}.weights.{field}", group["weights"].get(field), values)
            for field in _ABSENT:
                _check(f"{at}.weights.{field}", group["weights"].get(field), (None,))
            bits = group["weights"]["num_bits"]
        self._bits = bits or 8

    def shape(self, parts: Mapping[str, TensorEntry]) -> tuple[int, int]:
        """See `Format.shape`."""
        name, dtype = ("weight_packed", "I32") if self._packed else ("weight", "I8")
        if parts.keys() - {"weight_shape"} != {name, "weight_scale"}:
            raise ValueError(f"tensors {name} and weight_scale are expected, not {', '.join(sorted(parts))}")
        codes, scale = parts[name], parts["weight_scale"]
        if codes.dtype != dtype or len(codes.shape) != 2 or 0 in codes.shape:
            raise ValueError(f"{name} is {codes.dtype} {list(codes.shape)}, not {dtype} of two dimensions")
        rows, columns = codes.shape
        if self._packed:
            columns *= 32 // self._bits
        one = scale.shape in ((), (1,), (1, 1))
        grouped = len(scale.shape) == 2 and scale.shape[0] == rows and scale.shape[1] > 0 and columns % scale.shape[1] == 0
        if scale.dtype not in ("F32", "F16", "BF16") or not (one or grouped):
            raise ValueError(f"weight_scale is {scale.dtype} {list(scale.shape)} for a weight of {[rows, columns]}")
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        codes, scale = _unpacked(parts["weight_packed"], self._bits) if self._packed else parts["weight"], parts["weight_scale"]
        return Scaled((codes, scale.reshape(-1, 1).expand(codes.shape[0], 1) if scale.numel() == 1 else scale), dtype)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Codes int8 [out, in] of words int32."""
    fields = words.view(torch.uint8)
    if bits == 4:
        fields = torch.stack((fields & 15, fields >> 4), -1).flatten(1)
    return (fields.to(torch.int16) - (1 << (bits - 1))).to(torch.int8)


def _check(field: str, value: object, supported: tuple[object, ...]) -> None:
    if value not in supported or isinstance(value, bool) is not isinstance(supported[0], bool):
        wanted = " or ".join("none" if each is None else str(each) for each in supported)
        raise ValueError(f"{field} is {str(value)[:60]}; supported is {wanted}")
