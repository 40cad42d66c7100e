"""AWQ: scales of a layer's inputs that reduce the rounding loss.

Inputs with large activations are scaled up in the weights before these are rounded, and down in whatever produces the inputs: a norm's
weights, or the outputs of another linear layer. Source: Lin et al., "AWQ: Activation-aware Weight Quantization for On-Device LLM
Compression and Acceleration", 2023, section 3.2. The loss is that of the products with the calibration inputs, computed from their second
moments; weights are not clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tgi_core.engine.quantizing.layerwise import SeenLayer

Rounded = Callable[[Tensor], Tensor]
"""Returns a float32 matrix [out, in] after rounding."""

Stored = Callable[[nn.Parameter], Tensor]
"""Called with a parameter that has changed and is not quantized; returns its value in the checkpoint's dtype, as float32."""

_STEPS = 20
"""Exponents 0, 1/20, ... 19/20 of the activations' size are tried as scales."""
_LARGEST = 1e4
"""Bound of scales and of their inverse."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Linear layers that share an input, by name, and the module whose weight has a row for each of its channels."""

    consumers: tuple[str, ...]
    producer: nn.Module


def scale_inputs(seen: SeenLayer, rounded: Rounded, stored: Stored) -> None:
    """Scale the inputs of a decoder layer's linear layers where that reduces the rounding loss, without changing what the layer computes.
    The layer's moments follow."""
    for fold in find_folds(seen):
        consumers = [seen.linears[name] for name in fold.consumers]
        scales = best_scales([each.weight.data for each in consumers], seen.moments[fold.consumers[0]], rounded)
        scales = _divide_stored(fold.producer, scales, stored)
        for name, linear in zip(fold.consumers, consumers, strict=True):
            linear.weight.data *= scales
            seen.moments[name] = seen.moments[name] / scales.outer(scales)


def best_scales(matrices: Sequence[Tensor], moments: Tensor, rounded: Rounded) -> Tensor:
    """The scales [in] of inputs for which matrices [out, in] lose the least in their products with inputs of these second moments [in,
    in]."""
    size = moments.diagonal().sqrt()
    found: list[tuple[float, Tensor]] = []
    for step in range(_STEPS):
        scales = _balanced(size.pow(step / _STEPS))
        errors = ((rounded(matrix * scales) / scales).sub_(matrix) for matrix in matrices)
        found.append((sum(float((error @ moments).mul_(error).sum()) for error in errors), scales))
    return min(found, key=lambda each: each[0])[1]


def find_folds(seen: SeenLayer) -> list[Fold]:
    """The linear layers whose inputs can be scaled. A producer is found by trying: powers of two are exact, so scaling its outputs up and
    the consumers' columns down changes no bit of the layer's output, unless something else sees them too."""
    expected = seen.run()
    folds = []
    for names in _sharing(seen):
        consumers = [seen.linears[name] for name in names]
        for producer in _producers(seen, consumers):
            with _scaled(producer, consumers):
                same = torch.equal(seen.run(), expected)
            if same:
                folds.append(Fold(names, producer))
                break
    return folds


def _sharing(layer: SeenLayer) -> list[tuple[str, ...]]:
    """Names of linear layers, grouped if they get the very same tensor."""
    seen: dict[str, Tensor] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen[name] = args[0]

        return note

    hooks = [linear.register_forward_pre_hook(hook_of(name)) for name, linear in layer.linears.items()]
    layer.run()
    for hook in hooks:
        hook.remove()
    groups: dict[int, list[str]] = {}
    for name, tensor in seen.items():
        groups.setdefault(id(tensor), []).append(name)
    return [tuple(names) for names in groups.values()]


def _producers(seen: SeenLayer, consumers: Sequence[nn.Linear]) -> Iterator[nn.Module]:
    """Norms and other linear layers with as many outputs as the consumers have inputs."""
    for module in seen.layer.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.shape[0] != consumers[0].in_features or module in consumers:
            continue
        if weight.dim() == 1 or module in seen.linears.values():
            yield module


@contextmanager
def _scaled(producer: nn.Module, consumers: Sequence[nn.Linear]) -> Iterator[None]:
    """Scale by powers of two while the block runs."""
    generator = torch.Generator().manual_seed(0)
    scales = 2.0 ** torch.randint(-2, 3, (consumers[0].in_features,), generator=generator).float()
    kept = [(each, each.data.clone()) for module in (producer, *consumers) for each in module.parameters(recurse=False)]
    _divide(producer, scales)
    for linear in consumers:
        linear.weight.data *= scales
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


def _divide(producer: nn.Module, scales: Tensor) -> None:
    """Divide a module's outputs by scales."""
    for parameter in producer.parameters(recurse=False):
        parameter.data = parameter.data / scales.view(-1, *[1] * (parameter.dim() - 1))


def _divide_stored(producer: nn.Module, scales: Tensor, stored: Stored) -> Tensor:
    """As `_divide`; all but a linear layer's weight is then rounded to the checkpoint's dtype. Return the scales that a norm's weight was
    really divided by."""
    _divide(producer, scales)
    for name, parameter in producer.named_parameters(recurse=False):
        if name != "weight":
            parameter.data = stored(parameter)
        elif not isinstance(producer, nn.Linear):
            exact, parameter.data = parameter.data, stored(parameter)
            scales = torch.where(parameter.data == 0, scales, scales * exact / parameter.data)
    return scales


def _balanced(scales: Tensor) -> Tensor:
    """Scales around 1: none for inputs that were always 0."""
    used = scales[scales > 0]
    if not len(used):
        return torch.ones_like(scales)
    middle = (used.max() * used.min()).sqrt()
    return torch.where(scales > 0, scales / middle, 1).clamp(1 / _LARGEST, _LARGEST)
