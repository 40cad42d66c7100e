"""Checkpoints of `quant_method` bitsandbytes: 4 bits by a codebook (nf4 or fp4), or 8-bit integers.

4 bits: `weight` uint8 [out · in / 2, 1], the high half of a byte first, flat over [out, in]; `weight.quant_map` float32 [16], the codebook;
`weight.absmax`, a scale per block of the flat weight; `weight.quant_state.bitsandbytes__nf4` (or fp4), JSON as uint8 with shape and block
size. With double quantization absmax is uint8, and stands for nested_quant_map[absmax] · nested_absmax + nested_offset.
8 bits: `weight` int8 [out, in] and `SCB` float32 [out]; the weight is code · SCB / 127.
Source: https://github.com/bitsandbytes-foundation/bitsandbytes, bitsandbytes/functional.py (QuantState).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_field, check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import check_scales, grouped
from tgi_core.engine.quantization.weight import Dense, Levels, Weight
from tgi_core.engine.weights.headers import TensorEntry

_PART = re.compile(r"\.(weight(?:\.\w+)*|SCB|weight_format|bias)$")
_STATE = "weight.quant_state.bitsandbytes__"
_NESTED = ("weight.nested_absmax", "weight.nested_quant_map")


class BitsAndBytes(Format):
    """A codebook's numbers with a scale per block, or integers with a scale per output."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`."""
        four = settings.get("load_in_4bit", settings.get("_load_in_4bit")) or False
        eight = settings.get("load_in_8bit", settings.get("_load_in_8bit")) or False
        check_field("load_in_4bit", four, (True, False))
        check_field("load_in_8bit", eight, (not four,))
        if four:
            check_field("bnb_4bit_quant_type", settings.get("bnb_4bit_quant_type", "fp4"), ("nf4", "fp4"))
        self._four = bool(four)
        self.mark = "weight.absmax" if four else "SCB"

    def locate(self, name: str) -> tuple[str, str]:
        """See `Format.locate`. Parts of a weight have dots in their names."""
        found = _PART.search(name)
        return super().locate(name) if found is None else (name[: found.start()], found[1])

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        if not self._four:
            check_parts(parts, ("weight", "SCB"), ("weight_format",))
            rows, columns = check_tensor(parts, "weight", ("I8",), (None, None)).shape
            check_tensor(parts, "SCB", ("F32",), (rows,))
            if "weight_format" in parts and read(parts["weight_format"]).any():
                raise ValueError("weight_format is not 0, the order of rows; convert the checkpoint with a newer bitsandbytes")
            return rows, columns
        named = next((part for part in parts if part.startswith(_STATE)), f"{_STATE}nf4")
        nested = _NESTED if _NESTED[0] in parts else ()
        check_parts(parts, ("weight", "weight.absmax", "weight.quant_map", named, *nested))
        check_tensor(parts, "weight", ("U8",), (None, 1))
        check_tensor(parts, "weight.quant_map", ("F32",), (16,))
        state = _state(read(parts[named]), named)
        rows, columns = state["shape"]
        blocks = -(-rows * columns // state["blocksize"])
        check_tensor(parts, "weight", ("U8",), (-(-rows * columns // 2), 1))
        check_tensor(parts, "weight.absmax", ("U8",) if nested else ("F32",), (blocks,))
        if nested:
            check_tensor(parts, "weight.nested_quant_map", ("F32",), (256,))
            check_tensor(parts, "weight.nested_absmax", ("F32",), (-(-blocks // state["nested_blocksize"]),))
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        if not self._four:
            return grouped(parts["weight"], (parts["SCB"] / 127).unsqueeze(1), None, parts["weight"].shape[1], dtype)
        named = next(part for part in parts if part.startswith(_STATE))
        state = _state(parts[named], named)
        rows, columns = state["shape"]
        absmax = parts["weight.absmax"]
        if _NESTED[0] in parts:
            nested = torch.arange(absmax.numel()) // state["nested_blocksize"]
            codes = parts["weight.nested_quant_map"][absmax.long()]
            absmax = codes * parts["weight.nested_absmax"][nested] + state["nested_offset"]
        check_scales(absmax, dtype)
        check_scales(parts["weight.quant_map"], dtype)
        bytes_ = parts["weight"].flatten()
        places = torch.stack((bytes_ >> 4, bytes_ & 15), -1).flatten()[: rows * columns]
        if columns % state["blocksize"] == 0:
            groups = columns // state["blocksize"]
            by_row = places.view(rows, columns), absmax.view(rows, groups)
            return Levels(by_row, dtype, tuple(parts["weight.quant_map"].tolist()))
        numbers = parts["weight.quant_map"][places.long()]
        scales = absmax.repeat_interleave(state["blocksize"])[: rows * columns]
        return Dense.of((numbers * scales).view(rows, columns).to(dtype))


def _state(raw: Tensor, name: str) -> dict[str, Any]:
    """The JSON object of a weight. Raises ValueError."""
    try:
        state = json.loads(bytes(raw.numpy()))
        sizes = [*state["shape"], state["blocksize"], state.setdefault("nested_blocksize", 256)]
        state["nested_offset"] = float(state.get("nested_offset", 0.0))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} does not describe a weight: {type(error).__name__}: {str(error)[:60]}") from error
    if len(sizes) != 4 or not all(type(size) is int and 0 < size < 1 << 40 for size in sizes):
        raise ValueError(f"{name} describes a weight of shape and blocks {str(sizes)[:60]}")
    return state
