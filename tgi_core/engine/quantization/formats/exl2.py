"""Checkpoints of `quant_method` exl2, as ExLlamaV2 writes them: integers of 2 to 8 bits, a different number of bits in each group of
inputs.

A layer holds `q_weight` int32 [words, out], packed along the inputs; `q_groups` int16 [2 · groups], bits and first word of each group;
`q_scale` int32 [groups, out / 8] of 4 bits; `q_scale_max` float16 [groups]; `q_invperm` int32 [in], the stored place of each input. The
weight is (code − half the range) · (q_scale + 1)² · q_scale_max / 256, with scales rounded to float16.
Source: https://github.com/turboderp-org/exllamav2, conversion/adaptivegptq.py and exllamav2_ext/cuda/q_matrix.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import by_column, signed, unpack_fields
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry

_BITS = (2, 3, 4, 5, 6, 8)

Group = tuple[int, int, int, int]
"""Bits; first word, and the word after the last; inputs."""


class Exl2(Format):
    """Groups of inputs, in any order, with codes of their own number of bits."""

    mark = "q_weight"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`. The files give the bits of each group; the config's are an average."""

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        check_parts(parts, ("q_weight", "q_groups", "q_scale", "q_scale_max", "q_invperm"), ("q_perm",))
        words, rows = check_tensor(parts, "q_weight", ("I32",), (None, None)).shape
        [columns] = check_tensor(parts, "q_invperm", ("I32", "I16"), (None,)).shape
        [count] = check_tensor(parts, "q_scale_max", ("F16",), (None,)).shape
        check_tensor(parts, "q_groups", ("I16",), (2 * count,))
        check_tensor(parts, "q_scale", ("I32",), (count, rows // 8))
        if rows % 8:
            raise ValueError(f"q_weight has {rows} outputs, which are not divisible by 8")
        _groups(read(parts["q_groups"]), words, columns)
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        words, order = parts["q_weight"], parts["q_invperm"].long()
        columns = order.shape[0]
        if not torch.equal(order.sort().values, torch.arange(columns)):
            raise ValueError("q_invperm is not a permutation of the inputs")
        groups = _groups(parts["q_groups"], words.shape[0], columns)
        codes = [signed(unpack_fields(words[first:end], bits, 0)[:size], bits) for bits, first, end, size in groups]
        of_input = torch.arange(len(groups)).repeat_interleave(torch.tensor([size for *_, size in groups]))
        root = unpack_fields(parts["q_scale"], 4, 1).to(torch.float16) + 1
        scales = (root * root) * (parts["q_scale_max"] / 256).unsqueeze(1)
        return by_column(torch.cat(codes)[order].T, scales.T, None, of_input[order], dtype)


def _groups(stored: Tensor, words: int, columns: int) -> list[Group]:
    """The groups, which together cover all inputs. Raises ValueError."""
    pairs = [(bits, first & 0xFFFF) for bits, first in stored.view(-1, 2).tolist()]
    found: list[Group] = []
    left = columns
    for index, (bits, first) in enumerate(pairs):
        last = index + 1 == len(pairs)
        end = words if last else pairs[index + 1][1]
        if bits not in _BITS or first >= end or (index == 0 and first):
            raise ValueError(f"q_groups says that group {index} has {bits} bits in words {first} to {end}")
        size = left if last else (end - first) * 32 // bits
        if size < 1 or -(-size * bits // 32) != end - first:
            raise ValueError(f"q_groups leaves {size} inputs for group {index} of {bits} bits in words {first} to {end}")
        found.append((bits, first, end, size))
        left -= size
    return found
