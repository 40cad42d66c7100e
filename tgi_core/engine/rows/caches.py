"""transformers' cache of one row, whose keys and values are in the blocks of the paged cache.

The layers of a row's cache are of transformers' own classes, so that whatever a model reads from them is as it expects. Around each
update, a layer gets the keys and values of the row from its blocks, and those that are new are written to them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, cache_utils

from tgi_core.engine.attention.cache import LayerCache, LayerShape, PagedCache, movable
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.comparison import relative_difference
from tgi_core.engine.hf_cache import HFCacheModel
from tgi_core.engine.models.build import text_config
from tgi_core.engine.models.cache_names import cache_name
from tgi_core.engine.self_check import tolerance

_NAMES = ("DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer")
KINDS = tuple(getattr(cache_utils, name) for name in _NAMES if hasattr(cache_utils, name))
"""Exactly these classes of layers keep nothing but keys and values by position, and an index's keys."""

PROBE = [1, 0, 2, 1, 3]
"""Tokens over which a model is watched."""


@dataclass(frozen=True, slots=True)
class RowSlots:
    """The slots of a row in the paged cache, int64: those of its `past` positions, and those of the tokens of this step."""

    past: Tensor
    new: Tensor


class RowCaches:
    """Makes the cache objects of rows. `shapes` are the layers of the paged cache: for each layer that has run its keys and values, and
    for each index its keys, without values."""

    def __init__(self, model: HFCacheModel) -> None:
        """Runs the model over a few tokens. Raises NotRagged."""
        self._model, self._config, self.name = model, text_config(model.model.config), cache_name(model.model)
        if not self.name or not model.model._supports_default_dynamic_cache():
            raise NotRagged("it takes no cache of transformers' kind")
        cache = self._new()
        if odd := {type(layer).__name__ for layer in cache.layers if type(layer) not in KINDS}:
            raise NotRagged(f"it keeps more than keys and values: {', '.join(sorted(odd))}")
        self._run(len(PROBE), 0, cache)
        self.shapes: list[LayerShape] = []
        self._places = [(self._place(_kv_shape(layer)), self._place(_index_shape(layer))) for layer in cache.layers]
        if not self.shapes:
            raise NotRagged("it keeps no keys and values in the cache")
        if windows := {layer.sliding_window for layer in cache.layers if layer.is_sliding}:
            self._check_window(windows)

    def _run(self, end: int, start: int, cache: DynamicCache) -> Tensor:
        with torch.inference_mode():
            return self._model.run(PROBE[:end], start, {self.name: cache}, 1)

    def _check_window(self, windows: set[int]) -> None:
        """Raise NotRagged unless masks hide what a sliding window drops from the cache: else tokens depend on how a prompt is
        cut. Without weights there is nothing to compare."""
        own = getattr(self._config, "sliding_window", None)
        if windows != {own}:
            raise NotRagged("its layers have windows that its config does not name")
        half = len(PROBE) // 2 + 1
        self._config.sliding_window = 2
        try:
            whole, cache = self._run(len(PROBE), 0, self._new()), self._new()
            self._run(half, 0, cache)
            parts = self._run(len(PROBE), half, cache)
        finally:
            self._config.sliding_window = own
        if whole.is_meta:
            return
        if relative_difference(parts, whole) > tolerance(whole.dtype):
            raise NotRagged("its masks show more than the window that its cache keeps")

    def _new(self) -> DynamicCache:
        return DynamicCache(config=self._config)

    def _place(self, shape: LayerShape | None) -> int | None:
        if shape is None:
            return None
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def row(self, paged: PagedCache, slots: RowSlots) -> DynamicCache:
        """A row's cache in a step."""
        cache = self._new()
        while len(cache.layers) < len(self._places):
            cache.layers.append(cache.layer_class_to_replicate())
        for layer, (place, index) in zip(cache.layers, self._places, strict=True):
            if place is not None:
                _KeysAndValues(layer, paged.layers[place], slots)
            if index is not None:
                _IndexKeys(layer, paged.layers[index], slots)
        return cache


class _KeysAndValues:
    """Backs the keys and values of a layer: it has them during an update, and otherwise a placeholder of the same length."""

    def __init__(self, layer: Any, cache: Any, slots: RowSlots) -> None:
        self._layer, self._new, self._update, self._past = layer, slots.new, layer.update, slots.past
        self._cache: LayerCache = cache
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = len(slots.past)
            self._past = slots.past[max(0, len(slots.past) - layer.sliding_window + 1) :]
        if len(self._past):
            self._let_go(len(self._past))
        layer.is_initialized, layer.update = bool(len(self._past)), self.update

    def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What the layer returns for the keys and values [1, kv_heads, tokens, width] of new tokens."""
        layer, cache = self._layer, self._cache
        _initialize(layer, key, value)
        if len(self._past):
            layer.keys, layer.values = (
                _read(flat, self._past, given).transpose(0, 1).unsqueeze(0)
                for flat, given in ((cache.flat_keys, key), (cache.flat_values, value))
            )
        cache.write(self._new, key[0], value[0])
        found: tuple[Tensor, Tensor] = self._update(key, value, *args, **kwargs)
        self._let_go(layer.keys.shape[-2])
        return found

    def _let_go(self, length: int) -> None:
        placeholder = self._cache.flat_keys.new_zeros((), dtype=torch.uint8)
        self._layer.keys = self._layer.values = placeholder.expand(1, 1, length, 1)


class _IndexKeys:
    """Backs the keys of a layer's index."""

    def __init__(self, layer: Any, cache: Any, slots: RowSlots) -> None:
        self._layer, self._slots, self._update = layer, slots, layer.update_indexer
        self._cache: LayerCache = cache
        layer.update_indexer = self.update

    def update(self, keys: Tensor) -> Tensor:
        """What the layer returns for the index's keys [1, tokens, width] of new tokens."""
        if len(self._slots.past):
            self._layer.lazy_initialization_indexer(keys)
            self._layer.indexer_keys = _read(self._cache.flat_keys, self._slots.past, keys).transpose(0, 1)
        self._cache.write(self._slots.new, keys, keys[..., :0])
        found: Tensor = self._update(keys)
        self._layer.indexer_keys = None
        return found


def _initialize(layer: Any, key: Tensor, value: Tensor) -> None:
    """Give a layer its dtype and device; transformers 4 reads them from the keys alone."""
    layer.lazy_initialization(*(key, value)[: len(inspect.signature(layer.lazy_initialization).parameters)])


def _read(flat: Tensor, slots: Tensor, like: Tensor) -> Tensor:
    """Cached values [positions, kv_heads, width], in the dtype of new ones."""
    return movable(flat).index_select(0, slots).view(flat.dtype).to(like.dtype)


def _kv_shape(layer: Any) -> LayerShape | None:
    if getattr(layer, "keys", None) is None:
        return None
    if layer.keys.ndim != 4 or layer.values.ndim != 4:
        raise NotRagged("its keys and values have an unusual shape")
    return LayerShape(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1])


def _index_shape(layer: Any) -> LayerShape | None:
    if getattr(layer, "indexer_position_ids", None) is not None:
        raise NotRagged("its index keeps positions")
    keys = getattr(layer, "indexer_keys", None)
    return None if keys is None else LayerShape(1, keys.shape[-1], 0)
