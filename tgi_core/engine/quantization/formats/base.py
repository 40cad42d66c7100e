"""The interface of checkpoint formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.weights.headers import TensorEntry


class Format(ABC):
    """How a checkpoint stores the weights of linear layers. A layer without the tensor `mark` is not quantized, whatever the config
    says."""

    mark: ClassVar[str]
    """The suffix, after the layer's name, of a tensor that all quantized layers have, and no others."""

    @abstractmethod
    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings` is the config's `quantization_config`. Raises ValueError saying which field's value is not supported."""

    @abstractmethod
    def shape(self, parts: Mapping[str, TensorEntry]) -> tuple[int, int]:
        """Shape [out, in] of the weight that a layer's tensors, but for its bias, stand for. Raises ValueError saying which of them is
        not of the format."""

    @abstractmethod
    def unpack(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Weight:
        """The weight, for a model that runs in `dtype`, of tensors that lie in the files."""
