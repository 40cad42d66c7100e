"""transformers' cache objects over the lanes: what a decoder's modules write to and read from in one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, CacheLayerMixin

from tgi_core.engine.encoder_decoder.lanes import KeysValues, Lanes


class _Layer(CacheLayerMixin):
    """A layer's view of the lanes of a step."""

    is_sliding = False

    def __init__(self, view: KeysValues, seen: int) -> None:
        self.keys, self.values = view.keys, view.values
        self.is_initialized = True
        self._seen = seen

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Positions before those of the step."""
        return self._seen

    def get_mask_sizes(self, query_length: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """The length of the keys, and the position of the first."""
        return self.keys.shape[2], 0

    def get_max_length(self, *args: Any, **kwargs: Any) -> int:
        """The longest row that the view holds."""
        return self.keys.shape[2]

    get_max_cache_shape = get_max_length
    """Its name in transformers 4."""


class _Run(_Layer):
    """For one row: writes the next positions."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write, and return what is written so far."""
        end = self._seen + key_states.shape[2]
        self.keys[:, :, self._seen : end] = key_states
        self.values[:, :, self._seen : end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]


class _Rows(_Layer):
    """For several rows: writes one position of each."""

    def __init__(self, view: KeysValues, rows: Tensor, positions: Tensor) -> None:
        super().__init__(view, view.keys.shape[2] - 1)
        self._rows, self._positions = rows, positions

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write, and return the rows; positions past a row's own are masked."""
        self.keys[self._rows, :, self._positions] = key_states[:, :, 0]
        self.values[self._rows, :, self._positions] = value_states[:, :, 0]
        return self.keys, self.values


def of_row(lanes: Lanes, lane: int, prompt_len: int, start: int, end: int) -> EncoderDecoderCache:
    """The cache of a row that runs its positions start…end - 1. At the start, its modules fill in the encoder's keys and values."""
    where = slice(lane, lane + 1)
    own = [_Run(layer.view(where, end), start) for layer in lanes.own]
    cross = [_Run(layer.view(where, prompt_len), prompt_len if start else 0) for layer in lanes.cross]
    return EncoderDecoderCache(Cache(layers=own), Cache(layers=cross))


def of_rows(lanes: Lanes, positions: Tensor, longest: int, prompt_len: int) -> EncoderDecoderCache:
    """The cache of the rows in the first lanes, which run one position each [rows]; including these, rows have at most `longest`
    positions, and prompts at most `prompt_len`."""
    rows = torch.arange(len(positions), device=positions.device)
    own = [_Rows(layer.view(slice(len(positions)), longest), rows, positions) for layer in lanes.own]
    cross = [_Run(layer.view(slice(len(positions)), prompt_len), prompt_len) for layer in lanes.cross]
    return EncoderDecoderCache(Cache(layers=own), Cache(layers=cross))
