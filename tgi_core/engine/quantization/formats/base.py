"""The interface of checkpoint formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry


class Format(ABC):
    """How a checkpoint stores the weights of linear layers. A layer without the tensor `mark` is not quantized, whatever the config
    says."""

    mark: str
    """The part that all quantized layers have, and no others."""
    has_cache_scales = False
    """Whether checkpoints may hold scales of an 8-bit KV cache; see `quantization.cache_scales`."""

    @abstractmethod
    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings` is the config's `quantization_config`. Raises ValueError saying which field's value is not supported."""

    def is_mark(self, part: str) -> bool:
        """Whether a part is the mark."""
        return part == self.mark

    def locate(self, name: str) -> tuple[str, str]:
        """The layer and the part that make up a tensor's name, such as `model.layers.0.mlp.up_proj` and `weight_scale`."""
        layer, _, part = name.rpartition(".")
        return layer, part

    def weight_name(self, layer: str) -> str:
        """The name that a layer's weight has in an unquantized model."""
        return f"{layer}.weight"

    def unused(self, name: str) -> bool:
        """Whether a tensor outside of quantized layers is not needed, such as the scale of queries."""
        return False

    @abstractmethod
    def shape(self, parts: Mapping[str, TensorEntry], read: Callable[[TensorEntry], Tensor]) -> tuple[int, ...]:
        """Shape ([out, in] for a linear layer) of the weight that a layer's tensors, except its bias, represent. `read` returns the
        values of one. Raises ValueError naming the tensor that does not match the format."""

    @abstractmethod
    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """The weight, for a model that runs in `dtype`, of the tensors in the files."""
