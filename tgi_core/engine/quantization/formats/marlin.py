"""Checkpoints in Marlin's own layout, as AutoGPTQ and the Marlin repository write them: symmetric integers of 4 bits.

A layer holds `B` int32 [in / 16, 2 · out] and `s` float16 [groups, out]; the weight is (code − 8) · scale. Codes are stored in tiles of 16
by 16, four of them together in the order in which 32 threads read them for a matrix instruction; scales in the order of its results.
Source: https://github.com/IST-DASLab/marlin, marlin/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.formats.base import Format
from tgi_core.engine.quantization.formats.checks import check_field, check_parts, check_tensor
from tgi_core.engine.quantization.formats.fields import grouped, signed, unpack_fields
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry

_TILE, _TOGETHER = 16, 4
_FIELDS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The index, among a thread's eight codes, of the one in each field of a word."""
_GROUPS = (-1, 128)


class Marlin(Format):
    """Integers of 4 bits with scales per output or by groups of 128 inputs."""

    mark = "B"

    def __init__(self, settings: dict[str, Any]) -> None:
        """See `Format`."""
        check_field("bits", settings.get("bits", 4), (4,))
        check_field("group_size", settings.get("group_size", -1), _GROUPS)
        check_field("desc_act", settings.get("desc_act", False), (False,))
        check_field("sym", settings.get("sym", True), (True,))
        self._group = int(settings.get("group_size", -1))

    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, int]:
        """See `Format.shape`."""
        check_parts(parts, ("B", "s"), ("workspace",))
        tiles, words = check_tensor(parts, "B", ("I32",), (None, None)).shape
        rows, columns = words // 2, tiles * _TILE
        size = self._group if self._group > 0 else columns
        if words % 2 or rows % (_TILE * _TOGETHER) or columns % size:
            raise ValueError(f"B {[tiles, words]} does not hold whole tiles, or groups of {size} inputs")
        check_tensor(parts, "s", ("F16",), (columns // size, rows))
        return rows, columns

    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """See `Format.unpack`."""
        fields = unpack_fields(parts["B"], 4, 1)
        count, rows = parts["B"].shape[0], parts["B"].shape[1] // 2
        tiles = _placed(fields.reshape(-1, _TILE * _TILE * _TOGETHER), _code_places())
        matrix = tiles.reshape(count, rows // _TILE, _TILE, _TILE).permute(1, 3, 0, 2).reshape(rows, count * _TILE)
        scale_places = _scale_places(parts["s"].shape[0] > 1)
        scales = _placed(parts["s"].reshape(-1, len(scale_places)), scale_places).reshape(parts["s"].shape)
        return grouped(signed(matrix, 4), scales.T.contiguous(), None, matrix.shape[1] // scales.shape[0], dtype)


def _placed(stored: Tensor, places: list[int]) -> Tensor:
    """Columns moved to their places."""
    found = torch.empty_like(stored)
    found[:, places] = stored
    return found


@cache
def _code_places() -> list[int]:
    """The place in four tiles of each stored code. Of column i / 4 of a tile, and of the column 8 further on, thread i holds rows 2 · (i
    % 4) and the next one, and the rows 8 below these."""
    places: list[int] = []
    for thread in range(32):
        rows = [2 * (thread % 4) + row for row in (0, 1, 8, 9)]
        own = [_TILE * row + thread // 4 + column for column in (0, 8) for row in rows]
        for tile in range(_TOGETHER):
            places += [own[field] + _TILE * _TILE * tile for field in _FIELDS]
    return places


def _scale_places(by_group: bool) -> list[int]:
    """The output of each stored scale, of 64 by groups and of 32 otherwise."""
    if by_group:
        return [row + 8 * column for row in range(8) for column in range(8)]
    return [2 * row + column for row in range(4) for column in (0, 1, 8, 9, 16, 17, 24, 25)]
