"""The tensor-parallel plan that transformers has for a model type: which weights are divided, and how.

Source: `base_model_tp_plan` of a config and `_tp_plan` of a model with a head, patterns of names to styles. transformers 4.57 has other
names for some styles than 5.x; both are supported, and unknown names are refused: a wrong guess would give wrong tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from transformers import PretrainedConfig, PreTrainedModel

from tgi_core.backend import Unsupported
from tgi_core.engine.models.build import text_config


class Style(Enum):
    """How a weight is divided, or what happens to a module's output."""

    COLUMNS = "columns"
    """Each rank computes a part of the outputs."""
    COLUMNS_GATHERED = "columns gathered"
    """The same, and all ranks get all outputs."""
    ROWS = "rows"
    """Each rank takes a part of the inputs; the outputs are summed."""
    ROWS_LOCAL = "rows local"
    """The same, and a module further up sums."""
    ROWS_SPLIT = "rows split"
    """Each rank takes its part of inputs that all ranks have; the outputs are summed."""
    PACKED_COLUMNS = "packed columns"
    """Two concatenated weights, each divided separately."""
    PACKED_ROWS = "packed rows"
    """The same in the last dimension."""
    VOCABULARY = "vocabulary"
    """An embedding whose rows are divided."""
    SUMMED = "summed"
    """The module's output is summed."""
    SHARED_INPUT = "shared input"
    """A part of a summed module that every rank runs whole."""
    WHOLE = "whole"
    """Every rank has all of it."""


_STYLES = {
    "colwise": Style.COLUMNS,
    "local_colwise": Style.COLUMNS,
    "colwise_gather_output": Style.COLUMNS_GATHERED,
    "colwise_rep": Style.COLUMNS_GATHERED,
    "rowwise": Style.ROWS,
    "local_rowwise": Style.ROWS_LOCAL,
    "rowwise_split_input": Style.ROWS_SPLIT,
    "rowwise_rep": Style.ROWS_SPLIT,
    "packed_colwise": Style.PACKED_COLUMNS,
    "packed_rowwise": Style.PACKED_ROWS,
    "local_packed_rowwise": Style.PACKED_ROWS,
    "embedding_rowwise": Style.VOCABULARY,
    "moe_tp_experts": Style.SUMMED,
    "all_reduce": Style.SUMMED,
    "gather": Style.SUMMED,
    "moe_identity_expert": Style.SHARED_INPUT,
    "replicate": Style.WHOLE,
    "replicated_with_grad_allreduce": Style.WHOLE,
    "sequence_parallel": Style.WHOLE,
    "mla_kv_a_proj": Style.WHOLE,
    "local_params": Style.WHOLE,
    "local": Style.WHOLE,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A name pattern, in which * matches a number, and the style of what it matches."""

    pattern: str
    style: Style

    def matches(self, name: str) -> bool:
        """Whether a module or parameter matches."""
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"\d+"), name) is not None

    @property
    def leaf(self) -> str:
        """The last part of the pattern."""
        return self.pattern.rpartition(".")[2]


def read_plan(model: PreTrainedModel) -> tuple[Rule, ...]:
    """The rules of a model. Raises Unsupported for a type without a plan, or a plan with a style that is not known here."""
    config = model.config
    if not getattr(text_config(config), "base_model_tp_plan", None):
        raise Unsupported(
            f"--num-shard: transformers has no tensor-parallel plan for model type {config.model_type!r}; "
            "leave it out, or set it to 1, to run the model on one rank"
        )
    named = dict(_named_styles(model))
    unknown = sorted(set(named.values()) - _STYLES.keys())
    if unknown:
        raise Unsupported(
            f"--num-shard: the tensor-parallel plan of model type {config.model_type!r} has the style {unknown[0]!r}, which is not "
            "supported; leave it out, or set it to 1"
        )
    return tuple(Rule(pattern, _STYLES[style]) for pattern, style in named.items())


def _named_styles(model: PreTrainedModel) -> Iterator[tuple[str, str]]:
    """The plan of the whole model: that of its base, with the base's prefix, and that of its head."""
    whole = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    base: dict[str, str] = getattr(text_config(model.config), "base_model_tp_plan", None) or {}
    prefix = model.base_model_prefix
    yield from ((f"{prefix}.{pattern}", style) for pattern, style in base.items())
    yield from whole.items()


def check_heads(config: PretrainedConfig, rules: tuple[Rule, ...], world: int) -> None:
    """Raises Unsupported if the plan divides attention by heads and they cannot be divided."""
    if not any(rule.style is Style.COLUMNS and rule.leaf.startswith("q") for rule in rules):
        return
    text = text_config(config)
    heads = getattr(text, "num_attention_heads", None)
    if isinstance(heads, int) and heads % world:
        raise Unsupported(f"--num-shard {world}: num_attention_heads {heads} is not divisible by it; use {_divisors(heads)}")
    shared = getattr(text, "num_key_value_heads", None)
    if isinstance(shared, int) and shared and shared % world and world % shared:
        raise Unsupported(
            f"--num-shard {world}: num_key_value_heads {shared} neither divides by it nor divides it; use {_divisors(shared)}"
        )


def _divisors(number: int) -> str:
    found = [str(divisor) for divisor in range(1, number + 1) if number % divisor == 0]
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]
