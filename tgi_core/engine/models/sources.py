"""Finds the tensors of each weight of a model in a checkpoint, without reading them.

Most names match. transformers 5 stacks all experts in one tensor, while files store each expert; its conversion table says which.
Conversions of any other kind are not supported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel
from tgi_core.engine.quantization.stored import StoredWeight, StoredWeights
from tgi_core.engine.quantization.weight import Weight, concatenated


@dataclass(frozen=True, slots=True)
class Source:
    """A weight in the files: one tensor, or for each expert one or more, concatenated along their first dimension."""

    pieces: tuple[tuple[StoredWeight, ...], ...]
    stacked: bool = False

    @property
    def first(self) -> StoredWeight:
        """The tensor to name in messages."""
        return self.pieces[0][0]

    @property
    def num_bytes(self) -> int:
        """Size in the files."""
        return sum(piece.num_bytes for pieces in self.pieces for piece in pieces)

    def shape(self) -> tuple[int, ...]:
        """The shape of the whole weight."""
        found = self.pieces[0]
        one = tuple(found[0].shape)
        if len(found) > 1:
            one = (sum(piece.shape[0] for piece in found), *one[1:])
        return (len(self.pieces), *one) if self.stacked else one

    def weight(self, stored: StoredWeights, dtype: torch.dtype, rounded: bool = False) -> Weight | None:
        """The weight in its layout, or `rounded` at load; None for tensors that are not quantized."""
        if self.stacked or len(self.first.shape) != 2 or (self.first.format is None and not rounded):
            return None
        return concatenated([stored.linear(piece, dtype) for piece in self.pieces[0]])

    def read(self, stored: StoredWeights, dtype: torch.dtype) -> Iterator[Tensor]:
        """The tensor, whole, or one per expert: views of the files if possible; in `dtype` if it was quantized."""
        for found in self.pieces:
            parts = [
                stored.tensor(piece) if piece.format is None else stored.weight(piece, dtype).dequantize() for piece in found
            ]
            yield parts[0] if len(parts) == 1 else torch.cat(parts)

    def copy_to(self, loaded: Tensor, stored: StoredWeights, cut: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Write the weight to a tensor, and return it; `cut` selects the part of the tensor, or of each expert's, that it holds."""
        for index, value in enumerate(self.read(stored, loaded.dtype)):
            (loaded[index] if self.stacked else loaded).copy_(value if cut is None else cut(value))
        return loaded


def check_shape(source: Source, name: str, wanted: Sequence[int]) -> None:
    """Raise InvalidModel naming file and tensor unless the weight has the shape of the model's."""
    if source.shape() != tuple(wanted):
        text = f"tensor {name!r} has shape {list(source.shape())}, the model's is {list(wanted)}"
        raise InvalidModel(f"{source.first.entry.file}: {text}")
    for piece, first in (
        (piece, first) for pieces in source.pieces for piece, first in zip(pieces, source.pieces[0], strict=True)
    ):
        if piece.shape != first.shape:
            text = f"tensor {piece.name!r} has shape {list(piece.shape)}, that of {first.name!r} is {list(first.shape)}"
            raise InvalidModel(f"{piece.entry.file}: {text}")


def keeps_float32(model: PreTrainedModel) -> bool:
    """Whether transformers keeps some modules in float32, whatever the model's dtype."""
    return bool(getattr(model, "_keep_in_fp32_modules", None) or getattr(model, "_keep_in_fp32_modules_strict", None))


def find_sources(model: PreTrainedModel, stored: StoredWeights) -> dict[str, Source] | None:
    """Sources by the model's names, for those that the checkpoint has; None if it needs an unknown conversion."""
    wanted = set(model.state_dict())
    names = {name: name for name in stored.by_name}
    patterns: dict[str, str | None] = dict.fromkeys(stored.by_name)
    conversions = _conversions(model)
    if getattr(model, "_checkpoint_conversion_mapping", None):
        return None
    if conversions:
        renamed = _renamed(model, wanted, conversions, list(stored.by_name))
        if renamed is None:
            return None
        names, patterns = renamed
    prefix = model.base_model_prefix + "."
    found: dict[str, Source] = {}
    grouped: dict[str, dict[str, list[str]]] = {}
    for name_there, given in names.items():
        name = given if given in wanted else prefix + given
        if patterns[name_there] is not None:
            grouped.setdefault(name, {}).setdefault(str(patterns[name_there]), []).append(name_there)
        elif name in wanted:
            found[name] = Source(((stored.by_name[name_there],),))
    for name, by_pattern in grouped.items():
        order = [pattern for conversion in conversions for pattern in conversion.source_patterns if pattern in by_pattern]
        columns = [sorted(by_pattern[pattern], key=_numbers) for pattern in order]
        if len({len(column) for column in columns}) != 1:
            return None
        found[name] = Source(tuple(tuple(stored.by_name[item] for item in row) for row in zip(*columns, strict=True)), True)
    return found


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _conversions(model: PreTrainedModel) -> list[Any]:
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # transformers 4 has none of this kind
        return []
    return list(get_model_conversion_mapping(model) or ())


def _renamed(
    model: PreTrainedModel, wanted: set[str], conversions: list[Any], stored: list[str]
) -> tuple[dict[str, str], dict[str, str | None]] | None:
    """The model's name for each stored one, and the pattern of the conversion that it takes part in."""
    from transformers.core_model_loading import WeightConverter, rename_source_key

    renamings = [item for item in conversions if not isinstance(item, WeightConverter)]
    converters = [item for item in conversions if isinstance(item, WeightConverter)]
    understood = {pattern for item in converters if _stacks(item) for pattern in item.source_patterns}
    names: dict[str, str] = {}
    patterns: dict[str, str | None] = {}
    meta = dict.fromkeys(wanted, True)
    for name in stored:
        try:
            names[name], patterns[name] = rename_source_key(name, renamings, converters, model.base_model_prefix, meta)
        except (AttributeError, TypeError, ValueError):  # another version of transformers' own loader
            return None
        if patterns[name] is not None and patterns[name] not in understood:
            return None
    return names, patterns


def _stacks(converter: Any) -> bool:
    """Whether a conversion only stacks experts, after concatenating several tensors of each."""
    steps = [(type(item).__name__, getattr(item, "dim", None)) for item in converter.operations]
    return steps in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])
