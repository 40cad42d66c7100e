"""What a device package gives to the shared engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from tgi_core.engine.attention.cache import LayerCache
from tgi_core.engine.attention.interface import AttentionParameters
from tgi_core.engine.attention.metadata import StepMetadata


class AttentionProvider(Protocol):
    """One way to compute attention over the paged cache."""

    name: str

    def probe(self) -> str:
        """Why this provider cannot run here; empty when it can."""

    def attend(self, query: Tensor, cache: LayerCache, step: StepMetadata, parameters: AttentionParameters) -> Tensor:
        """query [heads, tokens, width] over what lies in the cache → [tokens, heads, value width]."""


class DeviceKit(Protocol):
    """A device, as far as the engine must know it."""

    device: torch.device
    collectives: str
    """torch.distributed's name for what ranks on this device talk over: gloo, nccl, …"""

    def choose_dtype(self, asked: str, stored: torch.dtype) -> torch.dtype:
        """The dtype to run in, for the name asked ("auto" or a torch dtype name) and the one stored. Raises Unsupported."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """A module with the meaning of `nn.Linear`, on the device."""

    def attention(self) -> Sequence[AttentionProvider]:
        """Attention providers, best first."""

    def free_bytes(self) -> int:
        """Memory that a cache may take now, after the weights and with the operator's fraction applied."""

    def default_rows(self) -> int:
        """How many rows to promise when nobody says."""

    def default_step_tokens(self) -> int:
        """How many tokens of one step to promise when nobody says."""
