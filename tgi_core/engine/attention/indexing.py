"""Layers that attend to positions which an index selects (DeepSeek sparse attention): the keys of the index, row by row.

An index is a module of the model. It scores keys that it has stored for a row, and returns the best positions of each token. Its keys are
in the paged cache, as a layer whose values have no width. Rows that run one token run as a batch, and each prompt by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import LayerCache, PagedLayer
from tgi_core.engine.attention.interface import IndexedRows
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.torch_sdpa import gathered


def indexed_rows(layer: PagedLayer, step: StepMetadata) -> list[IndexedRows]:
    """The rows of a step, whose index's keys are in a layer of the cache."""
    if not isinstance(layer, LayerCache):
        raise TypeError(f"an index whose keys are in {type(layer).__name__}")
    if step.begun is not None:
        layer.zero_blocks(step.begun)
    found, device = [], step.slots.device
    if step.decode is not None:
        rows = step.decode
        visible = torch.arange(rows.max_length, device=device) < rows.lengths[:, None, None]
        read = partial(_read, layer, rows.tables.flatten(), rows.count, rows.max_length)
        found.append(IndexedRows(0, rows.count, True, visible, partial(_update, layer, step.slots[: rows.count], read)))
    for row in step.prefill:
        length = row.past + row.end - row.start
        visible = torch.arange(length, device=device) <= torch.arange(row.past, length, device=device)[None, :, None]
        read = partial(_read, layer, row.table, 1, length)
        found.append(
            IndexedRows(row.start, row.end, False, visible, partial(_update, layer, step.slots[row.start : row.end], read))
        )
    return found


def _update(layer: LayerCache, slots: Tensor, read: Callable[[torch.dtype], Tensor], keys: Tensor) -> Tensor:
    flat = keys.reshape(1, -1, keys.shape[-1])
    layer.write(slots, flat, flat[..., :0])
    return read(keys.dtype)


def _read(layer: LayerCache, table: Tensor, rows: int, length: int, dtype: torch.dtype) -> Tensor:
    keys = gathered(layer.keys, table, dtype).squeeze(1).unflatten(0, (rows, -1))[:, :length]
    return keys if layer.scales.key == 1 else keys * layer.scales.key


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Selected positions [tokens, count] of several rows, padded to one count."""
    most = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[-1]), value=-1) for part in parts])
