"""Attention by a vendor's library over our own cache: the common part of device packages' providers.

The cache is [blocks, block size, KV heads, width], which is what these libraries call a paged cache in layout NHD. Before a library is
used, it is compared with plain torch on rows of many lengths, on the same device and with the parameters of the model's layers: several
releases of these libraries silently gave wrong numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tgi_core.engine.attention.cache import BLOCK_SIZES, LayerCache, LayerShape, PagedLayer, stacked_layers
from tgi_core.engine.attention.checking import LONG_ROWS, Case, disagreement
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata
from tgi_core.engine.attention.provider import AttentionLayer

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a library. `widths` are the supported widths of a head, `most` the widest if any multiple of 8 will do."""

    dtypes: tuple[torch.dtype, ...] = HALVES
    widths: tuple[int, ...] = ()
    most: int = 256
    windows: bool = True
    softcaps: bool = True

    def refusal(self, layer: LayerShape, asked: AttentionParameters, dtype: torch.dtype) -> str:
        """Why a layer is not supported; empty if it is."""
        if dtype not in self.dtypes:
            return f"no {str(dtype).removeprefix('torch.')}"
        if layer.key_width != layer.value_width:
            return "keys and values of different width"
        if layer.key_width not in self.widths if self.widths else layer.key_width > self.most or layer.key_width % 8:
            return f"no heads of {layer.key_width} elements"
        if asked.chunk is not None:
            return "no rows in chunks"
        if asked.sinks is not None:
            return "no sinks"
        if asked.bias is not None:
            return "no bias"
        if asked.selected is not None:
            return "no index"
        if asked.softcap is not None and not self.softcaps:
            return "no soft cap"
        return "no windows" if asked.window is not None and not self.windows else ""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a library (or a class, or a method by its dotted name), and the keyword arguments that we pass."""

    path: str
    arguments: tuple[str, ...]


class VendorAttention(ABC):
    """A provider that calls a vendor's library."""

    name: str
    module: str
    """The module of its functions."""
    calls: tuple[Call, ...]
    limits: Limits
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    kv_cache_dtypes: tuple[torch.dtype, ...] = ()
    invariant = False
    sees_ahead = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.library: Any = None

    def probe(self) -> str:
        """Why the library cannot be used here; empty if it is installed with the functions and arguments that we use."""
        try:
            library = importlib.import_module(self.module)
        except (ImportError, OSError, RuntimeError) as error:
            return f"{self.module} cannot be imported: {' '.join(str(error).split())[:200]}"
        for call in self.calls:
            found: Any = library
            for part in call.path.split("."):
                found = getattr(found, part, None)
            if found is None:
                return f"{self.module} has no {call.path}"
            if missing := _missing(found, call.arguments):
                return f"{self.module}.{call.path} takes no {', '.join(missing)}"
        self.library = library
        return self.unsupported()

    def unsupported(self) -> str:
        """Any other reason not to use the library on this device; empty if there is none."""
        return ""

    def refusal(self, layers: Sequence[LayerShape], asked: Sequence[AttentionParameters], dtype: torch.dtype) -> str:
        """Why this provider does not support these layers; empty if it does."""
        reasons = (self.limits.refusal(layer, wish, dtype) for layer, wish in zip(layers, asked, strict=True))
        return next(filter(None, reasons), "")

    def self_check(self, layers: Sequence[AttentionLayer], dtype: torch.dtype, device: torch.device) -> str:
        """What is wrong with the library's results for rows of which some are long enough to be split; empty if they are right."""
        return disagreement(self, layers, dtype, device, Case(LONG_ROWS, self.block_sizes[0]))

    def new_layer(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Keys and values as two plain tensors."""
        return LayerCache(shape, num_blocks, block_size, dtype, device)

    def new_layers(
        self, shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[LayerCache, ...]:
        """Caches of all layers, whose blocks are zeroed together."""
        return stacked_layers(shapes, num_blocks, block_size, dtype, device)

    def attend(self, query: Tensor, cache: PagedLayer, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] over what lies in the cache → [tokens, heads, width]."""
        if not isinstance(cache, LayerCache):
            raise TypeError(f"a cache of {type(cache).__name__}, which another provider made")
        return self.rows(query.transpose(0, 1), cache, step, parameters)

    @abstractmethod
    def rows(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [tokens, heads, width] → the same shape."""


def build_of(module: str) -> str:
    """What tells one installed build of a module's package from another: the time and size of its first file. Empty if there is none.

    Unlike a version, it also changes with a build from sources; and finding a module's version reads the records of all packages.
    """
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
        status = os.stat(found.origin or "") if found is not None else None
    except (OSError, ValueError):
        return ""
    return "" if status is None else f"{status.st_mtime_ns} {status.st_size}"


def window_of(parameters: AttentionParameters) -> tuple[int, int]:
    """(left, right) as flash attention counts them: positions seen besides the query's own, −1 for all."""
    return (-1, -1) if parameters.window is None else (parameters.window - 1, 0)


def uploaded(values: np.ndarray, device: torch.device) -> Tensor:
    """Host values on the device, without waiting for it: torch keeps the pinned copy until it has been read."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _missing(function: Any, needed: Sequence[str]) -> list[str]:
    """Arguments that a function does not accept; none if it accepts any, or has no signature."""
    try:
        takes = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        return []
    return [name for name in needed if name not in takes]
