"""Products with weights: what a device offers, and the choice of the first that serves a weight."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tgi_core.backend import Kernel, Unsupported
from tgi_core.engine.quantization.weight import Weight

_log = logging.getLogger("tgi_core.engine")


class Linear(Protocol):
    """A product with one weight, as a kernel reads it."""

    @property
    def num_bytes(self) -> int:
        """What the kernel keeps of the weight."""

    @property
    def dense(self) -> Tensor | None:
        """The matrix [out, in], where it lies in memory so; None elsewhere."""

    def __call__(self, input: Tensor) -> Tensor:
        """input [..., in] → input · Wᵀ + bias [..., out], in the weight's dtype."""


class LinearProvider(Protocol):
    """One way to compute products with weights."""

    name: str

    def probe(self) -> str:
        """Why this provider cannot run here; empty when it can."""

    def refusal(self, weight: Weight) -> str:
        """Why it cannot serve this weight: its layout, dtype or sizes; empty when it can."""

    def self_check(self, weight: Weight) -> str:
        """What goes wrong in products with a few rows of this weight; empty when nothing does. Asked once per layout and dtype.

        `checking.disagreement` compares with torch. A provider of which the whole model's proof says enough returns "".
        """

    def load(self, weight: Weight, bias: Tensor | None) -> Linear:
        """The product. `bias` [out]. The weight is on the device, and may be kept as it is."""


class Linears:
    """A device's providers, best first, and what was chosen of them."""

    def __init__(self, providers: Sequence[LinearProvider], device: torch.device) -> None:
        self.device = device
        self.saved_bytes = 0
        """How much less the chosen products keep than dense weights would take."""
        self._providers = tuple(providers)
        self._unfit: dict[tuple[str, str, torch.dtype], str] = {}
        self._chosen: dict[str, list[str]] = {}

    def load(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """The best product with a weight, on the device. Raises Unsupported where no provider serves it."""
        weight = weight.to(self.device)
        linear = self._choose(weight).load(weight, None if bias is None else bias.to(self.device))
        self.saved_bytes += weight.dense_bytes - linear.num_bytes
        return linear

    def kernels(self) -> tuple[Kernel, ...]:
        """What was chosen, and why not others before it."""
        return tuple(Kernel("linear", name, "; ".join(rejected)) for name, rejected in self._chosen.items())

    def _choose(self, weight: Weight) -> LinearProvider:
        rejected: list[str] = []
        for provider in self._providers:
            reason = provider.refusal(weight) or self._unfitness(provider, weight)
            if not reason:
                if provider.name not in self._chosen:
                    _log.info("linear: %s%s", provider.name, "".join(f"; {each}" for each in rejected))
                    self._chosen[provider.name] = rejected
                return provider
            rejected.append(f"not {provider.name}: {reason}")
        raise Unsupported("; ".join(["no linear provider can run on this device", *rejected]))

    def _unfitness(self, provider: LinearProvider, weight: Weight) -> str:
        """Why a provider cannot run here or computes something else; found out once per layout and dtype."""
        key = provider.name, weight.layout, weight.dtype
        if key not in self._unfit:
            self._unfit[key] = provider.probe() or provider.self_check(weight)
        return self._unfit[key]
