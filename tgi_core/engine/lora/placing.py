"""Where an adapter's matrices belong in a model."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from tgi_core.engine.lora.files import AdapterFile, LowRank
from tgi_core.engine.lora.weights import refused
from tgi_core.engine.models.linear_layers import linear_sizes


def place(model: PreTrainedModel, adapter: AdapterFile) -> dict[str, LowRank]:
    """The adapter's matrices by the names of the model's modules, whose sizes they fit. Raises InvalidModel."""
    modules = dict(model.named_modules())
    placed = {}
    for name, low_rank in adapter.modules.items():
        own = next((each for each in _spellings(name, model.base_model_prefix) if each in modules), None)
        if own is None:
            raise refused(adapter, f"targets {name!r}, which is no module of this model ({model.config.model_type})")
        _check_kind(model, modules[own], adapter, name)
        _check_sizes(modules[own], adapter, name, low_rank)
        placed[own] = low_rank
    return placed


def _spellings(name: str, prefix: str) -> tuple[str, ...]:
    """Adapters may have been trained with or without the head's prefix."""
    return name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")


def _check_kind(model: PreTrainedModel, module: nn.Module, adapter: AdapterFile, name: str) -> None:
    if isinstance(module, nn.Embedding) or module is model.get_output_embeddings():
        raise refused(adapter, f"targets {name!r}; adapters of embeddings and of the output layer are not supported")
    if linear_sizes(module) is None:
        raise refused(adapter, f"targets {name!r}, which is a {type(module).__name__} here and not a linear layer")


def _check_sizes(module: nn.Module, adapter: AdapterFile, name: str, low_rank: LowRank) -> None:
    found = low_rank.down.shape[1], low_rank.up.shape[0]
    sizes = linear_sizes(module)
    if sizes is not None and found != sizes:
        raise refused(
            adapter,
            f"{name!r} takes {found[0]} numbers to {found[1]}, the model's {sizes[0]} to {sizes[1]}; was it made for another model?",
        )
