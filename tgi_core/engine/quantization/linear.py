"""Linear kernels: the providers that a device offers, and the choice of the first that supports a weight."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tgi_core.backend import Kernel, Unsupported
from tgi_core.engine.quantization.weight import Weight
from tgi_core.engine.selection import first_supported

_log = logging.getLogger("tgi_core.engine")


class Linear(Protocol):
    """One linear layer: a GEMM with a weight in the layout that a kernel reads."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight as the kernel keeps it."""

    @property
    def dense(self) -> Tensor | None:
        """The matrix [out, in] if the kernel keeps it in that form, else None."""

    def __call__(self, input: Tensor) -> Tensor:
        """input [..., in] → input · Wᵀ + bias [..., out], in the weight's dtype."""


class LinearProvider(Protocol):
    """One way to compute linear layers."""

    name: str

    def probe(self) -> str:
        """Why this provider cannot run here; empty if it can."""

    def refusal(self, weight: Weight) -> str:
        """Why it does not support this weight (layout, dtype or sizes); empty if it does."""

    def self_check(self, weight: Weight) -> str:
        """What is wrong with the result of a GEMM with a few rows of this weight; empty if it is right.

        Called once per layout, dtype and dtype of codes. `checking.disagreement` compares with torch. A provider that the self-check of the
        whole model covers returns "".
        """

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """The linear layer. `bias` [out]. The weight is on the device; the result may refer to it."""


@runtime_checkable
class RoundsInputs(Protocol):
    """A provider that may round inputs, so that its results differ from those of the model's dtype by more than rounding errors."""

    rounds_inputs: bool


class Linears:
    """A device's linear providers, best first, and which of them were chosen."""

    def __init__(self, providers: Sequence[LinearProvider], device: torch.device) -> None:
        self.device = device
        self.saved_bytes = 0
        """Bytes that the chosen kernels save compared with dense weights."""
        self.rounds_inputs = False
        """Whether a chosen kernel rounds its inputs to eight bits."""
        self._providers = tuple(providers)
        self._unsupported: dict[tuple[object, ...], str] = {}
        self._chosen: dict[str, list[str]] = {}

    def load(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """A linear layer of the best provider that supports the weight, on the device. Raises Unsupported if none does."""
        weight = weight.to(self.device)
        provider = self._choose(weight)
        linear = provider.load(weight, None if bias is None else bias.to(self.device))
        self.rounds_inputs |= isinstance(provider, RoundsInputs) and provider.rounds_inputs
        self.saved_bytes += weight.dense_bytes - linear.num_bytes
        return linear

    def kernels(self) -> tuple[Kernel, ...]:
        """The chosen providers, and why earlier ones were rejected."""
        return tuple(Kernel("linear", name, "; ".join(rejected)) for name, rejected in self._chosen.items())

    def _choose(self, weight: Weight) -> LinearProvider:
        provider, rejected = first_supported(self._providers, lambda each: each.refusal(weight) or self._checked(each, weight))
        if provider is None:
            raise Unsupported("; ".join(["no linear provider can run on this device", *rejected]))
        if provider.name not in self._chosen:
            _log.info("linear: %s%s", provider.name, "".join(f"; {each}" for each in rejected))
            self._chosen[provider.name] = rejected
        return provider

    def _checked(self, provider: LinearProvider, weight: Weight) -> str:
        """Why a provider cannot run here or computes wrong results; checked once per layout and dtypes."""
        key = provider.name, weight.layout, weight.dtype, weight.parts[0].dtype
        if key not in self._unsupported:
            self._unsupported[key] = provider.probe() or provider.self_check(weight)
        return self._unsupported[key]
