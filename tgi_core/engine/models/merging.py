"""Merging linear layers that read the same input into one: queries, keys and values; gate and up.

Which siblings share an input is observed in a run of the model, not guessed from names. No module's forward changes: each sibling is
replaced by a part of the merged layer, and the first one called computes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tgi_core.engine.models.linear import WeightLinear, absent_weight
from tgi_core.engine.models.linear_layers import is_linear, weight_of
from tgi_core.engine.quantization.weight import Weight, concatenated

LinearFactory = Callable[[Weight, Tensor | None], nn.Module]
"""(weight [out, in], bias [out] or None) → a module equivalent to `nn.Linear`."""


class SharedLinear:
    """One linear layer behind several modules. Remembers its last input and output, which hold one step's activations."""

    __slots__ = ("input", "linear", "output")

    def __init__(self, linear: nn.Module) -> None:
        self.linear = linear
        self.input: Tensor | None = None
        self.output: Tensor | None = None

    def part(self, input: Tensor, start: int, end: int) -> Tensor:
        """Columns start…end-1 of the output for `input`, computed once per input."""
        if input is not self.input or self.output is None:
            self.input, self.output = input, self.linear(input)
        return self.output[..., start:end]


class LinearPart(nn.Module):
    """Replaces one of the merged layers."""

    def __init__(self, shared: SharedLinear, start: int, end: int, final: bool, weight: Tensor) -> None:
        super().__init__()
        self._shared, self._start, self._end, self._final = shared, start, end, final
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.weight = absent_weight(weight)
        self.bias = None

    def forward(self, input: Tensor) -> Tensor:
        """The columns of this layer."""
        out = self._shared.part(input, self._start, self._end)
        if self._final:
            # This was the last part: activations need not outlive the step.
            self._shared.input = self._shared.output = None
        return out


@contextmanager
def observed_inputs(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Inputs of every linear layer that runs inside, by module name, in call order."""
    seen: dict[str, list[Tensor]] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, args: seen.setdefault(name, []).append(args[0])

    hooks = [m.register_forward_pre_hook(watch(name)) for name, m in model.named_modules() if is_linear(m)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def mergeable(model: nn.Module, seen: dict[str, list[Tensor]]) -> list[list[str]]:
    """Groups of sibling layers that ran once, one after the other, on the same tensor."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, inputs in seen.items():
        if len(inputs) == 1:
            groups.setdefault((name.rpartition(".")[0], id(inputs[0])), []).append(name)
    return [names for names in groups.values() if len(names) > 1 and _alike(model, names)]


def linears(model: nn.Module, names: list[str]) -> list[nn.Linear | WeightLinear]:
    """The modules of these names, which keep their weights as [out, in]."""
    return [layer for layer in map(model.get_submodule, names) if isinstance(layer, nn.Linear | WeightLinear)]


def _alike(model: nn.Module, names: list[str]) -> bool:
    layers = linears(model, names)
    return (
        len(layers) == len(names) and len({(layer.in_features, layer.weight.dtype, layer.bias is None) for layer in layers}) == 1
    )


def merge(model: nn.Module, names: list[str], factory: LinearFactory) -> None:
    """Replace layers by parts of one."""
    layers = linears(model, names)
    weight = concatenated([weight_of(layer) for layer in layers])
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    shared = SharedLinear(factory(weight, bias))
    start = 0
    for name, layer in zip(names, layers, strict=True):
        end = start + layer.out_features
        model.set_submodule(name, LinearPart(shared, start, end, layer is layers[-1], layer.weight))
        start = end
