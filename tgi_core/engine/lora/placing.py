"""Matching an adapter's target modules with a model's."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from tgi_core.engine.lora.files import AdapterFile, LoraTensors
from tgi_core.engine.lora.weights import adapter_error
from tgi_core.engine.models.linear_layers import linear_sizes


def place(model: PreTrainedModel, adapter: AdapterFile) -> dict[str, LoraTensors]:
    """The adapter's tensors by the model's module names, with their sizes checked. Raises InvalidModel."""
    modules = dict(model.named_modules())
    placed = {}
    for name, tensors in adapter.modules.items():
        own = next((each for each in _spellings(name, model.base_model_prefix) if each in modules), None)
        if own is None:
            raise adapter_error(adapter, f"targets {name!r}, which is not a module of this model ({model.config.model_type})")
        _check_kind(model, modules[own], adapter, name)
        _check_sizes(modules[own], adapter, name, tensors)
        placed[own] = tensors
    return placed


def _spellings(name: str, prefix: str) -> tuple[str, ...]:
    """Adapters may have been trained with or without the head's prefix."""
    return name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")


def _check_kind(model: PreTrainedModel, module: nn.Module, adapter: AdapterFile, name: str) -> None:
    if isinstance(module, nn.Embedding) or module is model.get_output_embeddings():
        raise adapter_error(adapter, f"targets {name!r}; adapters of embeddings and of the output layer are not supported")
    if linear_sizes(module) is None:
        raise adapter_error(adapter, f"targets {name!r}, which is a {type(module).__name__} here and not a linear layer")


def _check_sizes(module: nn.Module, adapter: AdapterFile, name: str, tensors: LoraTensors) -> None:
    found = tensors.lora_a.shape[1], tensors.lora_b.shape[0]
    sizes = linear_sizes(module)
    if sizes is not None and found != sizes:
        raise adapter_error(
            adapter,
            f"{name!r} maps {found[0]} inputs to {found[1]} outputs, the model's layer {sizes[0]} to {sizes[1]}; "
            "was the adapter trained on another model?",
        )
