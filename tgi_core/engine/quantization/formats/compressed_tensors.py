"""Checkpoints of `quant_method` compressed-tensors, as llm-compressor writes them: integers of 2 to 8 bits, and floats of 8 or 4.

| format | codes | scales |
|---|---|---|
| int-quantized, naive-quantized | `weight` int8 [out, in] | `weight_scale`, `weight_zero_point` int8 |
| float-quantized, naive-quantized | `weight` float8_e4m3fn [out, in] | `weight_scale`, also by blocks |
| pack-quantized | `weight_packed` int32 [out, in · bits / 32], plus half the range | `weight_zero_point`, packed along out |
| nvfp4-pack-quantized | `weight_packed` uint8 [out, in / 2], two E2M1 floats, the low half first | float8_e4m3fn / `weight_global_scale` |
| mxfp4-pack-quantized | the same | uint8, 2^(value − 127) |

Scales are [out, groups], [out, 1] or [1]; `weight_g_idx` [in] is the group of each input if they are not in order.
Source: https://github.com/vllm-project/compressed-tensors, its compressors of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_field, check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import by_column, check_groups, grouped, signed, unpack_fields
from tgi_core.engine.quantization.formats.floats4 import e2m1_codes, power_of_two
from tgi_core.engine.quantization.formats.scales import blocks, check_scale, scaled, with_input_scale
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry

_CODES: dict[str, dict[str, tuple[int, ...]]] = {
    "int-quantized": {"int": (8,)},
    "float-quantized": {"float": (8,)},
    "naive-quantized": {"int": (8,), "float": (8,)},
    "pack-quantized": {"int": (2, 3, 4, 5, 6, 7, 8)},
    "nvfp4-pack-quantized": {"float": (4,)},
    "mxfp4-pack-quantized": {"float": (4,)},
    "dense": {},
}
"""Supported bits of a code, by the config's name of the format and the type of the weights. Dense checkpoints may have scales of a KV
cache."""

_STRATEGIES = ("channel", "tensor", "group", "block", "tensor_group")
_OPTIONAL = ("input_scale", "input_zero_point", "input_global_scale", "weight_g_idx")


class CompressedTensors(Format):
    """Codes and their scales; a static scale of inputs is for kernels that round them."""

    mark = "weight_scale"
    has_cache_scales = True

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`. All layers have one format, and one type and size of codes."""
        stored = settings.get("format")
        check_field("format", stored, tuple(_CODES))
        self._stored, self._type, self._bits, self._block = str(stored), "", 0, None
        self._zero_points = True
        check_field("quantization_status", settings.get("quantization_status", "compressed"), ("compressed", "frozen"))
        check_field("sparsity_config", settings.get("sparsity_config") or None, (None,))
        for name, group in settings["config_groups"].items():
            at, weights = f"config_groups.{name}", group["weights"]
            check_field(f"{at}.format", group.get("format") or stored, (stored,))
            check_field(f"{at}.output_activations", group.get("output_activations"), (None,))
            kind = weights.get("type")
            check_field(f"{at}.weights.type", kind, (self._type,) if self._type else tuple(_CODES[self._stored]))
            bits = (self._bits,) if self._bits else _CODES[self._stored][kind]
            check_field(f"{at}.weights.num_bits", weights.get("num_bits"), bits)
            check_field(f"{at}.weights.strategy", weights.get("strategy"), _STRATEGIES)
            block = blocks(f"{at}.weights.block_structure", weights.get("block_structure"))
            self._type, self._bits, self._block = kind, weights["num_bits"], block
            self._zero_points = self._zero_points and kind == "int" and weights.get("symmetric", True) is False

    def unused(self, name: str) -> bool:
        """See `Format.unused`."""
        return name.endswith((".q_scale", ".prob_scale"))

    @property
    def _packed(self) -> bool:
        return self._stored == "pack-quantized"

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        if "fp4" in self._stored:
            return self._shape_of_floats4(parts)
        name, dtypes = (
            ("weight_packed", ("I32",)) if self._packed else ("weight", ("I8",) if self._type == "int" else ("F8_E4M3",))
        )
        integers = ("weight_zero_point", "weight_shape") if self._type == "int" else ()
        zeros = ("weight_zero_point",) if self._zero_points else ()
        check_parts(parts, (name, "weight_scale", *zeros), (*_OPTIONAL, *integers))
        rows, columns = check_tensor(parts, name, dtypes, (None, None)).shape
        if self._packed:
            columns = self._columns_of_words(parts, read, (rows, columns))
        check_scale(parts, "weight_scale", (rows, columns), self._block)
        if "weight_zero_point" in parts:
            groups = (parts["weight_scale"].shape or (1,))[-1]
            packed = -(-rows * self._bits // 32) if parts["weight_scale"].shape[:1] == (rows,) else 1
            check_tensor(parts, "weight_zero_point", dtypes, (packed, groups) if self._packed else parts["weight_scale"].shape)
        if "weight_g_idx" in parts:
            check_tensor(parts, "weight_g_idx", ("I32", "I64"), (columns,))
        return rows, columns

    def _columns_of_words(
        self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor], words: tuple[int, int]
    ) -> int:
        if "weight_shape" not in parts:
            return words[1] * 32 // self._bits
        check_tensor(parts, "weight_shape", ("I64", "I32"), (2,))
        rows, columns = read(parts["weight_shape"]).tolist()
        if rows != words[0] or columns < 1 or -(-columns * self._bits // 32) != words[1]:
            raise ValueError(f"weight_shape is {[rows, columns]}, and weight_packed {list(words)} of {self._bits} bits")
        return int(columns)

    def _shape_of_floats4(self, parts: Mapping[str, TensorEntry]) -> tuple[int, int]:
        nv = self._stored == "nvfp4-pack-quantized"
        size = 16 if nv else 32
        check_parts(parts, ("weight_packed", "weight_scale", *(["weight_global_scale"] if nv else [])), _OPTIONAL)
        rows, half = check_tensor(parts, "weight_packed", ("U8",), (None, None)).shape
        if 2 * half % size:
            raise ValueError(f"weight_packed holds {2 * half} inputs, which groups of {size} don't divide")
        check_tensor(parts, "weight_scale", ("F8_E4M3",) if nv else ("U8", "F8_E8M0"), (rows, 2 * half // size))
        if nv:
            check_tensor(parts, "weight_global_scale", ("F32",), (1,))
        return rows, 2 * half

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        scale = parts["weight_scale"]
        if "fp4" in self._stored:
            codes = e2m1_codes(parts["weight_packed"])
            by_group = scale.float() / parts["weight_global_scale"] if "weight_global_scale" in parts else power_of_two(scale)
            return grouped(codes, by_group / 2, None, codes.shape[1] // by_group.shape[1], dtype)
        if not self._packed and not parts.keys() & {"weight_zero_point", "weight_g_idx"}:
            weight = scaled(parts["weight"], scale, self._block, dtype)
            symmetric = "input_zero_point" not in parts or not parts["input_zero_point"].any()
            return with_input_scale(weight, parts.get("input_scale") if symmetric else None)
        codes, zeros = self._integers(parts)
        rows, columns = codes.shape
        scale = scale.reshape(1, 1).expand(rows, 1) if scale.numel() == 1 else scale.reshape(rows, -1)
        if zeros is not None:
            zeros = zeros.reshape(1, 1).expand(rows, 1) if zeros.numel() == 1 else zeros.reshape(rows, -1)
        group = parts.get("weight_g_idx")
        if group is None or bool((group < 0).all()):
            return grouped(codes, scale, zeros, columns // scale.shape[1], dtype)
        check_groups("weight_g_idx", group, scale.shape[1], columns // scale.shape[1])
        return by_column(codes, scale, zeros, group.long(), dtype)

    def _integers(self, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Codes [out, in] and zero points, int8."""
        zeros = parts.get("weight_zero_point")
        if not self._packed:
            return parts["weight"], zeros
        words = parts["weight_packed"]
        codes = signed(unpack_fields(words, self._bits, 1), self._bits)
        if "weight_shape" in parts:
            codes = codes[:, : int(parts["weight_shape"][1])]
        return codes, None if zeros is None else signed(unpack_fields(zeros, self._bits, 0), self._bits)[: words.shape[0]]
