"""Weights of linear layers in memory, in any layout."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor


class Weight(ABC):
    """A matrix [out, in] of `dtype`, stored in `parts`. Immutable: methods return new weights.

    Row i of the matrix is row i of every part, so that slicing, reordering and concatenating rows works the same in every layout.
    """

    layout: ClassVar[str]
    __slots__ = ("dtype", "parts")

    def __init__(self, parts: Sequence[Tensor], dtype: torch.dtype) -> None:
        self.parts, self.dtype = tuple(parts), dtype

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows (outputs) and columns (inputs) of the matrix."""

    @abstractmethod
    def dequantize(self) -> Tensor:
        """The matrix [out, in] in `dtype`, on the weight's device; a view if the layout is dense."""

    @abstractmethod
    def columns(self, start: int, end: int) -> Weight:
        """Columns start…end-1: a rank's part of a row-parallel layer."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.numel() * part.itemsize for part in self.parts)

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dequantized matrix."""
        rows, columns = self.shape
        return rows * columns * self.dtype.itemsize

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return self.parts[0].device

    def like(self, parts: Sequence[Tensor]) -> Self:
        """Other parts in the same layout."""
        return type(self)(parts, self.dtype)

    def apply(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same layout over changed parts."""
        return self.like([change(part) for part in self.parts])

    def joined(self, others: Sequence[Self]) -> Self:
        """This weight, followed by the rows of others that can be concatenated."""
        return self.like([torch.cat(parts) for parts in zip(self.parts, *(other.parts for other in others), strict=True)])

    def to(self, device: torch.device, *, copy: bool = False) -> Self:
        """The weight on a device; in new memory if `copy`."""
        return self.apply(lambda part: part.to(device, copy=copy))

    def rows(self, start: int, end: int) -> Self:
        """Rows start…end-1."""
        return self.apply(lambda part: part[start:end])

    def reordered(self, order: Tensor) -> Self:
        """Rows `order` [rows], in a copy."""
        return self.apply(lambda part: part.index_select(0, order))

    def can_concatenate(self, other: Weight) -> bool:
        """Whether another weight has this layout and can be concatenated below."""
        return (
            type(self) is type(other)
            and self.dtype is other.dtype
            and len(self.parts) == len(other.parts)
            and all(
                mine.dtype is theirs.dtype and mine.shape[1:] == theirs.shape[1:]
                for mine, theirs in zip(self.parts, other.parts, strict=True)
            )
        )


class Dense(Weight):
    """The matrix itself."""

    layout = "dense"
    __slots__ = ()

    @classmethod
    def of(cls, matrix: Tensor) -> Self:
        """A matrix [out, in] as a weight."""
        return cls((matrix,), matrix.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """See `Weight.shape`."""
        rows, columns = self.parts[0].shape
        return rows, columns

    def dequantize(self) -> Tensor:
        """The matrix; no copy."""
        return self.parts[0]

    def columns(self, start: int, end: int) -> Dense:
        """A view."""
        return Dense.of(self.parts[0][:, start:end])


class Grouped(Weight):
    """Codes [out, in], 8-bit integers or floats, and further parts [out, groups] for groups of adjacent columns, the scales first."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, int]:
        """See `Weight.shape`."""
        rows, columns = self.parts[0].shape
        return rows, columns

    @property
    def group_size(self) -> int:
        """Columns that share a scale."""
        return self.shape[1] // self.parts[1].shape[1]

    def columns(self, start: int, end: int) -> Weight:
        """Codes of the columns with their scales; dense if the range splits a group."""
        codes, *by_group = self.parts
        size = self.group_size
        if by_group[0].shape[1] == 1:
            return self.like((codes[:, start:end], *by_group))
        if start % size or end % size:
            return Dense.of(self.dequantize()[:, start:end])
        return self.like((codes[:, start:end], *(part[:, start // size : end // size] for part in by_group)))


class Scaled(Grouped):
    """Codes with scales; a third part, if there is one, holds the groups' zero points, in the codes' dtype or in float32.

    `input_scale` is what inputs may be divided by where they are rounded to eight bits, if the checkpoint was calibrated for that.
    """

    layout = "scaled"
    __slots__ = ("input_scale",)

    def __init__(self, parts: Sequence[Tensor], dtype: torch.dtype, input_scale: float | None = None) -> None:
        super().__init__(parts, dtype)
        self.input_scale = input_scale

    def like(self, parts: Sequence[Tensor]) -> Self:
        """See `Weight.like`."""
        return type(self)(parts, self.dtype, self.input_scale)

    def joined(self, others: Sequence[Self]) -> Self:
        """See `Weight.joined`. The largest scale of inputs holds for all, if all have one."""
        whole, scales = super().joined(others), [each.input_scale for each in (self, *others)]
        known = [scale for scale in scales if scale is not None]
        whole.input_scale = max(known) if len(known) == len(scales) else None
        return whole

    def dequantize(self) -> Tensor:
        """(code − zero point) · scale, multiplied in the scales' dtype or `dtype`, whichever is wider, and rounded once."""
        codes, scales, *zeros = self.parts
        wide = torch.promote_types(scales.dtype, self.dtype)
        grouped = codes.to(wide).unflatten(1, (scales.shape[1], -1))
        if zeros:  # exact: differences of 8-bit integers
            grouped = grouped - zeros[0].to(wide).unsqueeze(-1)
        return (grouped * scales.to(wide).unsqueeze(-1)).flatten(1).to(self.dtype)


class Affine(Grouped):
    """Codes with scales and offsets, both float32 or float16: GGUF's types with a minimum. Codes merged with others may be 16-bit
    integers."""

    layout = "affine"
    __slots__ = ()

    def dequantize(self) -> Tensor:
        """code · scale + offset, in float32, and rounded once."""
        codes, scales, offsets = self.parts
        scaled = codes.float().unflatten(1, (scales.shape[1], -1)) * scales.float().unsqueeze(-1)
        return (scaled + offsets.float().unsqueeze(-1)).flatten(1).to(self.dtype)


class Levels(Grouped):
    """Codes below 16 with scales: indices into a codebook of 16 float32 `levels`, such as NF4's."""

    layout = "levels"
    __slots__ = ("levels",)

    def __init__(self, parts: Sequence[Tensor], dtype: torch.dtype, levels: tuple[float, ...]) -> None:
        super().__init__(parts, dtype)
        self.levels = levels

    def like(self, parts: Sequence[Tensor]) -> Self:
        """See `Weight.like`."""
        return type(self)(parts, self.dtype, self.levels)

    def can_concatenate(self, other: Weight) -> bool:
        """See `Weight.can_concatenate`. The codebooks must be equal."""
        return super().can_concatenate(other) and isinstance(other, Levels) and self.levels == other.levels

    def dequantize(self) -> Tensor:
        """level · scale, in float32, and rounded once."""
        codes, scales = self.parts
        levels = torch.tensor(self.levels, dtype=torch.float32, device=self.device)[codes.int()]
        return (levels.unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(-1)).flatten(1).to(self.dtype)


def concatenated(weights: Sequence[Weight]) -> Weight:
    """Weights concatenated by rows: in their layout if they share one or are integers of which some have offsets; else dense."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if any(isinstance(weight, Affine) for weight in weights):
        weights = _affine(weights)
        first = weights[0]
    if not all(first.can_concatenate(other) for other in weights[1:]):
        return Dense.of(torch.cat([weight.dequantize() for weight in weights]))
    return first.joined(weights[1:])


def _affine(weights: Sequence[Weight]) -> Sequence[Weight]:
    """The same weights with offsets, in groups of one size; unchanged if some are not integers without zero points."""
    found = [
        weight for weight in weights if isinstance(weight, Affine) or (isinstance(weight, Scaled) and len(weight.parts) == 2)
    ]
    if len(found) < len(weights) or any(weight.parts[0].is_floating_point() for weight in found):
        return weights
    size = math.gcd(*(weight.group_size for weight in found))
    made: list[Weight] = []
    for weight in found:
        codes, scales, *offsets = weight.parts
        by_group = (scales.float(), offsets[0].float() if offsets else torch.zeros_like(scales, dtype=torch.float32))
        times = weight.group_size // size
        made.append(Affine((codes.to(torch.int16), *(part.repeat_interleave(times, 1) for part in by_group)), weight.dtype))
    return made


def code_range(codes: Tensor) -> tuple[int, int]:
    """The lowest code, and how many there are from it to the highest."""
    low, high = (int(code) for code in codes.aminmax())
    return low, high - low + 1
