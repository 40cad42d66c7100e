"""The indexes of a model's layers, run for the rows of a ragged step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from tgi_core.engine.attention.indexing import joined
from tgi_core.engine.attention.interface import IndexedRows, NotRagged, active_attention
from tgi_core.engine.models.cache_names import CACHE_NAMES, cache_name


class IndexedCache(DynamicCache):
    """The cache that a model with indexes gets in a ragged step: layers get back the keys and values of new tokens alone."""

    def __init__(self) -> None:
        super().__init__()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The same keys and values."""
        return key_states, value_states

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Nothing is before the step's tokens."""
        return 0

    def get_mask_sizes(self, query_length: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Positions that a mask covers, and the first of them."""
        return query_length, 0


class Indexes:
    """All indexes of a model; makes the caches of its steps. Changes their `forward`."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises NotRagged if there is none."""
        found = [module for module in model.modules() if _updates_index(module)]
        if not found:
            raise NotRagged("its layers select visible positions in a way of their own")
        self._name = cache_name(model)
        for module in found:
            module.forward = _ByRows(module.forward)

    def arguments(self) -> dict[str, Any]:
        """The arguments with which the model runs a step."""
        return {self._name: IndexedCache(), "use_cache": True}


def _updates_index(module: nn.Module) -> bool:
    """Whether a module itself stores keys of an index. Those whose `forward` was replaced do as well."""
    forward = type(module).forward
    return "update_indexer" in getattr(inspect.unwrap(forward), "__code__", _updates_index.__code__).co_names


class _ByRows:
    """Stands in for an index's `forward`."""

    def __init__(self, plain: Callable[..., Tensor]) -> None:
        self._plain, self._signature = plain, inspect.signature(plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """The positions [1, tokens, count] that each token sees; −1 is none."""
        given = self._signature.bind(*args, **kwargs).arguments
        name = next((name for name in CACHE_NAMES if isinstance(given.get(name), IndexedCache)), "")
        if not name:
            return self._plain(*args, **kwargs)
        parts = []
        for rows in active_attention().indexed():
            own = {key: _of(rows, value) for key, value in given.items() if key not in (name, "attention_mask")}
            selected = self._plain(**own, attention_mask=rows.visible, **{name: _Updates(rows)})
            parts.append(selected.flatten(0, 1))
        return joined(parts).unsqueeze(0)


class _Updates:
    """The part of a cache that an index uses."""

    def __init__(self, rows: IndexedRows) -> None:
        self._rows = rows

    def update_indexer(self, keys: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The index's keys of all positions for those of new tokens; see `IndexedRows.update`."""
        return self._rows.update(keys)


def _of(rows: IndexedRows, value: Any) -> Any:
    """What a group of rows gets of an argument about all tokens, [1, tokens, ...]."""
    if isinstance(value, tuple):
        return tuple(_of(rows, each) for each in value)
    if not isinstance(value, Tensor):
        return value
    part = value[:, rows.start : rows.end]
    return part.transpose(0, 1) if rows.batched else part
