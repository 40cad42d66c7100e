"""The part of every weight that a rank holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tgi_core.backend import Unsupported
from tgi_core.engine.models.build import text_config
from tgi_core.engine.parallel.plan import Rule, Style, check_heads, read_plan
from tgi_core.engine.quantization.weight import Dense, Weight, concatenated

_SHARDED_STYLES = (Style.COLUMNS, Style.COLUMNS_GATHERED, Style.ROWS, Style.ROWS_LOCAL, Style.ROWS_SPLIT)
_LINEAR_ROWS = (Style.ROWS, Style.ROWS_LOCAL, Style.ROWS_SPLIT)
_UNEVEN = (Style.COLUMNS_GATHERED, Style.ROWS_SPLIT, Style.VOCABULARY)
"""Styles whose parts may differ in size: nothing between such layers counts heads."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a tensor: `ranges` of one dimension, concatenated."""

    dim: int
    ranges: tuple[tuple[int, int], ...]

    def of(self, tensor: Tensor) -> Tensor:
        """The part of a whole tensor; a view if it is one range."""
        parts = [tensor.narrow(self.dim, start, end - start) for start, end in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def of_weight(self, weight: Weight) -> Weight:
        """The part of a linear layer's whole weight, in its layout if that can be divided so."""
        if self.dim == 0:
            return concatenated([weight.rows(start, end) for start, end in self.ranges])
        [first, *others] = self.ranges
        return Dense.of(self.of(weight.dequantize())) if others else weight.columns(*first)

    def shape(self, whole: torch.Size) -> torch.Size:
        """The shape of the part."""
        sizes = list(whole)
        sizes[self.dim] = sum(end - start for start, end in self.ranges)
        return torch.Size(sizes)


@dataclass(frozen=True, slots=True)
class Partition:
    """One rank's part of a model.

    `shards` are by parameter; `collective_styles`: by module, for those that communicate; `sizes`: the ranks' output sizes of those that
    gather.
    """

    rank: int
    world: int
    shards: dict[str, Shard] = field(default_factory=dict)
    collective_styles: dict[str, Style] = field(default_factory=dict)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def shard_range(size: int, rank: int, world: int) -> tuple[int, int]:
    """The range of a rank in a dimension; the last ranks have less if the size is not divisible."""
    step = -(-size // world)
    return min(size, rank * step), min(size, (rank + 1) * step)


def partition(model: PreTrainedModel, rank: int, world: int) -> Partition:
    """Shrink a model on the meta device to a rank's part. Raises Unsupported, naming the field that prevents it."""
    rules = read_plan(model)
    check_heads(model.config, rules, world)
    found = Partition(rank, world)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    for name, module in modules.items():
        for rule in rules:
            if rule.matches(name):
                _part_module(model, found, name, module, rule)
    for name in parameters:
        for rule in rules:
            if rule.matches(name) and rule.style is not Style.WHOLE:
                owner, _, leaf = name.rpartition(".")
                _shard(model, found, owner, leaf, rule.style)
    return found


def _part_module(model: PreTrainedModel, found: Partition, name: str, module: nn.Module, rule: Rule) -> None:
    style = rule.style
    if style in _SHARDED_STYLES and not isinstance(module, nn.Linear):
        raise Unsupported(f"--num-shard {found.world}: {name} is not a plain linear layer; leave it out")
    if style is Style.COLUMNS_GATHERED and isinstance(module, nn.Linear):
        ranges = [shard_range(module.out_features, rank, found.world) for rank in range(found.world)]
        found.sizes[name] = tuple(end - start for start, end in ranges)
    if style in _SHARDED_STYLES or style is Style.VOCABULARY:
        _shard(model, found, name, "weight", style)
    if isinstance(module, nn.Embedding) and style is Style.VOCABULARY:
        module.num_embeddings, module.padding_idx = module.weight.shape[0], None
    if isinstance(module, nn.Linear):
        if module.bias is not None and style in (Style.COLUMNS, Style.COLUMNS_GATHERED):
            _shard(model, found, name, "bias", style)
        elif module.bias is not None and style in _LINEAR_ROWS and found.rank:
            module._parameters["bias"] = None  # added once, before the sum, by rank 0
        module.out_features, module.in_features = module.weight.shape[0], module.weight.shape[1]
    if style not in (Style.COLUMNS, Style.ROWS_LOCAL, Style.WHOLE, Style.PACKED_COLUMNS, Style.PACKED_ROWS):
        found.collective_styles[name] = style


def _shard(model: PreTrainedModel, found: Partition, owner: str, leaf: str, style: Style) -> None:
    """Record the part of a parameter, and shrink the module's parameter to it."""
    module, name = model.get_submodule(owner), f"{owner}.{leaf}"
    whole = getattr(module, leaf)
    if not isinstance(whole, nn.Parameter) or (whole.ndim == 1 and style in (*_LINEAR_ROWS, Style.PACKED_ROWS)):
        return
    if style is Style.VOCABULARY:
        dim = 0
    elif style in (*_LINEAR_ROWS, Style.PACKED_ROWS):
        dim = whole.ndim - 1
    else:
        dim = max(0, whole.ndim - 2)
    packed = 2 if style in (Style.PACKED_COLUMNS, Style.PACKED_ROWS) and whole.ndim > 1 else 1
    size = whole.shape[dim] // packed
    ranges = _shared_heads(model, found, owner, size) if style is Style.COLUMNS else None
    if ranges is None:
        if size % found.world and style not in _UNEVEN:
            raise Unsupported(f"--num-shard {found.world}: {_field(model, size)} is not divisible by it ({name})")
        start, end = shard_range(size, found.rank, found.world)
        ranges = tuple((part * size + start, part * size + end) for part in range(packed))
    found.shards[name] = Shard(dim, ranges)
    module._parameters[leaf] = nn.Parameter(
        torch.empty(found.shards[name].shape(whole.shape), dtype=whole.dtype, device="meta"), requires_grad=False
    )


def _shared_heads(model: PreTrainedModel, found: Partition, owner: str, size: int) -> tuple[tuple[int, int], ...] | None:
    """The key or value head that a rank replicates, if there are fewer than ranks."""
    parent, _, leaf = owner.rpartition(".")
    text = text_config(model.config)
    heads, query_heads = getattr(text, "num_key_value_heads", None), getattr(text, "num_attention_heads", None)
    if leaf not in ("k_proj", "v_proj") or not isinstance(heads, int) or not heads or heads % found.world == 0:
        return None
    attention, width, head = model.get_submodule(parent), size // heads, found.rank * heads // found.world
    if hasattr(attention, "num_key_value_groups") and isinstance(query_heads, int):
        attention.num_key_value_groups = query_heads // found.world
    return ((head * width, (head + 1) * width),)


def _field(model: PreTrainedModel, size: int) -> str:
    """The field of the config that has this size, if one does."""
    text = text_config(model.config)
    names = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "n_inner", "ffn_dim", "hidden_size")
    return next((f"{name} {size}" for name in names if getattr(text, name, None) == size), f"a dimension of {size}")
