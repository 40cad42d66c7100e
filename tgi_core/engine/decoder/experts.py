"""Decoder tables whose MLPs are experts: their config, the names of their weights, and their arithmetic in plain torch.

A shared expert runs as one or more experts of the size of the others that every token has: an MLP is a sum over its inner columns, and
columns of zeros add nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.engine.decoder.fields import read_count, read_number
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.experts import Activation, Experts, Routing, route


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The names that a family's checkpoints have inside a layer; {} is an expert's number. `stacked` families store all experts as one
    tensor [experts, in, out], in which gates and ups alternate."""

    router: str
    gate: str
    up: str
    down: str
    stacked: bool = False
    shared: str = ""
    """The prefix of the shared expert's projections; empty if the family has none."""
    shared_gate: str = ""
    """Empty: the shared expert's weight is 1."""
    correction: str = ""
    """What is added to experts' weights for the choice; empty if the family has none."""


_QWEN = ExpertNames("mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj")
_DEEPSEEK = replace(_QWEN, shared="mlp.shared_experts", correction="mlp.gate.e_score_correction_bias")
_MIXTRAL = "block_sparse_moe.experts.{}"

NAMES = {
    "gpt_oss": ExpertNames("mlp.router", "mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", True),
    "mixtral": ExpertNames("block_sparse_moe.gate", f"{_MIXTRAL}.w1", f"{_MIXTRAL}.w3", f"{_MIXTRAL}.w2"),
    "qwen2_moe": ExpertNames(
        _QWEN.router, _QWEN.gate, _QWEN.up, _QWEN.down, shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate"
    ),
    "qwen3_moe": _QWEN,
}
"""By `model_type`."""


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """The experts of every layer: `inner` columns each; `shared_inner` are the shared expert's, 0 without one. `biases`: whether the router
    and all projections have them."""

    names: ExpertNames
    routing: Routing
    activation: Activation
    inner: int
    shared_inner: int = 0
    biases: bool = False
    wide_router: bool = False
    """Whether the router's logits are computed in float32."""


def read_experts(config: dict[str, Any], model_type: str) -> ExpertTable:
    """The experts of a config.json of a family in `NAMES`. Raises UnsupportedFamily."""
    names = NAMES[model_type]
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedFamily("only some of its layers have experts")
    count, top = read_count(config, "num_local_experts", "num_experts"), read_count(config, "num_experts_per_tok")
    inner = read_count(config, "intermediate_size" if model_type in ("mixtral", "gpt_oss") else "moe_intermediate_size")
    if top > count:
        raise UnsupportedFamily(f"each token has {top} of {count} experts")
    normalized = model_type in ("mixtral", "gpt_oss") or bool(config.get("norm_topk_prob", False))
    shared_inner = read_count(config, "shared_expert_intermediate_size") if names.shared else 0
    routing = Routing(count, top, normalized, -(-shared_inner // inner), bool(names.shared_gate))
    if model_type != "gpt_oss":
        return ExpertTable(names, routing, Activation(), inner, shared_inner)
    clamped = Activation(float(config.get("swiglu_alpha", 1.702)), 1.0, float(config.get("swiglu_limit", 7.0)))
    return ExpertTable(names, routing, clamped, inner, biases=True)


def read_deepseek_experts(config: dict[str, Any]) -> ExpertTable:
    """The experts of a config.json in DeepSeek's words. Sigmoids with a correction are V3's, a softmax without one is V2's; transformers
    writes no `topk_method` for V3. Raises UnsupportedFamily."""
    method = config.get("topk_method") or "noaux_tc"
    kind = {"noaux_tc": "sigmoid", "greedy": "softmax", "group_limited_greedy": "softmax"}.get(method)
    scoring, scale = config.get("scoring_func"), read_number(config, "routed_scaling_factor")
    if kind is None or scoring not in (None, kind):
        raise UnsupportedFamily(f"its experts are chosen by {str(method)[:40]} of {str(scoring)[:40]}")
    sigmoid, normalized = kind == "sigmoid", bool(config.get("norm_topk_prob", False))
    if normalized and not sigmoid:
        raise UnsupportedFamily("its norm_topk_prob, of which implementations differ, is set")
    count, top = read_count(config, "n_routed_experts"), read_count(config, "num_experts_per_tok")
    groups, kept = (1, 1) if method == "greedy" else (read_count(config, "n_group"), read_count(config, "topk_group"))
    size = count // groups
    if count % groups or not kept <= groups or top > kept * size or (sigmoid and kept < groups and size < 2):
        raise UnsupportedFamily(f"each token has {top} of {count} experts, in {kept} of {groups} groups")
    inner, shared = read_count(config, "moe_intermediate_size"), read_count(config, "n_shared_experts")
    routing = Routing(count, top, normalized, shared, sigmoid=sigmoid, groups=groups, kept_groups=kept, scale=scale)
    names = _DEEPSEEK if sigmoid else replace(_DEEPSEEK, correction="")
    return ExpertTable(names, routing, Activation(), inner, shared * inner, wide_router=True)


def expert_tensors(table: ExpertTable, hidden: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a layer's tensors."""
    names, count, inner = table.names, table.routing.experts, table.inner
    found: dict[str, tuple[int, ...]] = {f"{names.router}.weight": (count, hidden)}
    if names.stacked:
        found |= {names.gate: (count, hidden, 2 * inner), names.down: (count, inner, hidden)}
        found |= {
            f"{names.router}.bias": (count,),
            f"{names.gate}_bias": (count, 2 * inner),
            f"{names.down}_bias": (count, hidden),
        }
        return found
    for expert in range(count):
        found |= {f"{each.format(expert)}.weight": (inner, hidden) for each in (names.gate, names.up)}
        found[f"{names.down.format(expert)}.weight"] = (hidden, inner)
    if names.shared:
        found |= {f"{names.shared}.{each}_proj.weight": (table.shared_inner, hidden) for each in ("gate", "up")}
        found[f"{names.shared}.down_proj.weight"] = (hidden, table.shared_inner)
    if names.shared_gate:
        found[f"{names.shared_gate}.weight"] = (1, hidden)
    if names.correction:
        found[names.correction] = (count,)
    return found


Projections = tuple[Tensor, Tensor, Tensor]
"""An expert's gate and up [inner, hidden], and down [hidden, inner]."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A layer's experts in a checkpoint: `read` gives the tensor of a name in the model's dtype, `read_wide` in float32."""

    table: ExpertTable
    read: Callable[[str], Tensor]
    read_wide: Callable[[str], Tensor]

    def router(self) -> tuple[Tensor, Tensor | None]:
        """[logits, hidden], and the bias [logits], or None."""
        names = self.table.names
        if self.table.wide_router:
            return self.read_wide(f"{names.router}.weight"), None
        weight = self.read(f"{names.router}.weight")
        if self.table.routing.gated:
            weight = torch.cat((weight, self.read(f"{names.shared_gate}.weight")))
        return weight, self.read(f"{names.router}.bias") if self.table.biases else None

    def correction(self) -> Tensor | None:
        """What is added to experts' weights for the choice [experts], float32, or None."""
        name = self.table.names.correction
        return self.read_wide(name) if name else None

    def projections(self) -> Iterator[Projections]:
        """Expert by expert, those that share an MLP last."""
        names, inner = self.table.names, self.table.inner
        if names.stacked:
            both, down = self.read(names.gate).transpose(1, 2), self.read(names.down).transpose(1, 2)
            yield from zip(both[:, ::2], both[:, 1::2], down, strict=True)
            return
        for expert in range(self.table.routing.experts):
            gate, up, down = (self.read(f"{each.format(expert)}.weight") for each in (names.gate, names.up, names.down))
            yield gate, up, down
        if not names.shared:
            return
        gate, up, down = (self.read(f"{names.shared}.{each}_proj.weight") for each in ("gate", "up", "down"))
        for first in range(0, self.table.shared_inner, inner):
            some = slice(first, first + inner)
            left = first + inner - min(first + inner, self.table.shared_inner)
            yield F.pad(gate[some], (0, 0, 0, left)), F.pad(up[some], (0, 0, 0, left)), F.pad(down[:, some], (0, left))

    def biases(self) -> tuple[Tensor, Tensor] | None:
        """Of all experts: [experts, 2 · inner], gates first, and [experts, hidden]; None if they have none."""
        names = self.table.names
        if not self.table.biases:
            return None
        both = self.read(f"{names.gate}_bias")
        return torch.cat((both[:, ::2], both[:, 1::2]), -1), self.read(f"{names.down}_bias")

    def load(self, hidden: int, dtype: torch.dtype, device: torch.device) -> Experts:
        """Copy them to a device, expert by expert."""
        table = self.table
        count, inner = table.routing.experts + table.routing.shared, table.inner
        gate_up = torch.empty(count, 2 * inner, hidden, dtype=dtype, device=device)
        downs = torch.empty(count, hidden, inner, dtype=dtype, device=device)
        for expert, (gate, up, down) in enumerate(self.projections()):
            gate_up[expert, :inner].copy_(gate)
            gate_up[expert, inner:].copy_(up)
            downs[expert].copy_(down)
        if (biases := self.biases()) is None:
            return Experts(gate_up, downs, activation=table.activation)
        return Experts(gate_up, downs, biases[0].to(device), biases[1].to(device, copy=True), table.activation)


def reference_experts(normed: Tensor, weights: ExpertWeights) -> Tensor:
    """A layer's MLP for tokens [tokens, hidden], float32: GEMMs in the weights' dtype, everything between them in float32."""
    (router, bias), table = weights.router(), weights.table
    logits = F.linear(normed.to(router.dtype), router).float()
    chosen = route(logits if bias is None else logits + bias.float(), table.routing, weights.correction())
    biases, out = weights.biases(), torch.zeros_like(normed)
    for expert, (gate, up, down) in enumerate(weights.projections()):
        weight = torch.where(chosen.ids == expert, chosen.weights, 0).sum(-1)
        rows = weight.nonzero().flatten()
        if not len(rows):
            continue
        some = normed[rows].to(gate.dtype)
        gates, ups = F.linear(some, gate).float(), F.linear(some, up).float()
        if biases is not None:
            first, second = biases[0][expert].float().chunk(2)
            gates, ups = gates + first, ups + second
        made = F.linear(table.activation(gates, ups).to(down.dtype), down).float()
        if biases is not None:
            made += biases[1][expert].float()
        out[rows] += weight[rows].unsqueeze(-1) * made
    return out
