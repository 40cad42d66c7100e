"""The decoder family with one shared structure, read from a model's config.json.

The structure is norm, attention with RoPE, norm, gated MLP with SiLU or experts; the table holds what differs between types. A config with
anything else is refused, never ignored: such a model runs through transformers' own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tgi_core.engine.decoder.experts import NAMES, ExpertTable, read_deepseek_experts, read_experts
from tgi_core.engine.decoder.fields import read_count, read_number
from tgi_core.engine.decoder.latent import LatentSizes, expert_layers, has_latent, latent_scale, read_latent
from tgi_core.engine.decoder.rotary import Rotary, read_rotary
from tgi_core.engine.decoder.unsupported import UnsupportedFamily


@dataclass(frozen=True, slots=True)
class Family:
    """A model type's defaults for missing config fields, and its variations of the structure."""

    epsilon: float = 1e-6
    rotary_base: float = 10000.0
    tied: bool = False
    kv_heads: bool = False  # may be missing: then every query head has its own
    window: int | None = None  # in all layers, unless the config says otherwise
    windows: str = (
        "none"  # which layers have the config's window: none, all, those that `layer_types` names, or some, by older fields
    )
    qkv_bias: bool = False  # unless the config says otherwise
    bias_fields: tuple[str, ...] = ("attention_bias", "attention_bias", "mlp_bias")  # of qkv, output and MLP in the config
    query_norm: bool = False
    scaled: bool = False  # Granite's multipliers
    merged: bool = False  # one projection for queries, keys and values, one for gate and up
    no_rotary: bool = False  # some layers have no RoPE
    sinks: bool = False


FAMILIES = {
    "gpt_oss": Family(
        epsilon=1e-5, rotary_base=150000.0, windows="named", bias_fields=("attention_bias", "attention_bias", ""), sinks=True
    ),
    "granite": Family(scaled=True, kv_heads=True),
    "llama": Family(kv_heads=True),
    "mimo": Family(windows="some", qkv_bias=True, bias_fields=("", "", "")),
    "ministral": Family(windows="named", bias_fields=("", "", "")),
    "mistral": Family(window=4096, windows="all", bias_fields=("", "", "")),
    "mixtral": Family(epsilon=1e-5, rotary_base=1_000_000.0, windows="all", bias_fields=("", "", "")),
    "phi3": Family(epsilon=1e-5, merged=True, windows="all", kv_heads=True, bias_fields=("", "", "")),
    "qwen2": Family(windows="some", qkv_bias=True, bias_fields=("", "", "")),
    "qwen2_moe": Family(qkv_bias=True, bias_fields=("qkv_bias", "", "")),
    "qwen3": Family(windows="some", query_norm=True, bias_fields=("attention_bias", "attention_bias", "")),
    "qwen3_moe": Family(query_norm=True, bias_fields=("attention_bias", "attention_bias", "")),
    "seed_oss": Family(qkv_bias=True, bias_fields=("attention_bias", "attention_out_bias", "mlp_bias")),
    "smollm3": Family(rotary_base=2_000_000.0, tied=True, windows="some", no_rotary=True),
}
"""By `model_type`."""

LATENT = Family(kv_heads=True)
"""Whatever has latent attention."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The differences between layers: `window` positions that a query sees (None: all), whether the layer has RoPE, and whether its MLP is
    dense in a table with experts."""

    window: int | None
    rotary: bool
    dense: bool = False


@dataclass(frozen=True, slots=True)
class DecoderTable:
    """A decoder. Sizes in elements; scales multiply what they name (attention scores, both branches of the residual, logits)."""

    model_type: str
    vocab_size: int
    max_positions: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    layers: tuple[DecoderLayer, ...]
    rotary: Rotary
    epsilon: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    query_norm: bool
    merged: bool
    embedding_scale: float
    attention_scale: float
    residual_scale: float
    logit_scale: float
    sinks: bool = False
    experts: ExpertTable | None = None
    """Of every layer that is not dense, in place of one MLP. If none is dense, `intermediate` is what a token's experts have together."""
    latent: LatentSizes | None = None
    """Of latent attention; `head_size` is then that of queries and keys, and the rotary positions are those of their last elements."""
    extra_layers: int = 0
    """Layers for multi-token prediction that follow in the checkpoint."""

    @property
    def value_size(self) -> int:
        """Elements of a head's value."""
        return self.head_size if self.latent is None else self.latent.value

    @property
    def widest(self) -> int:
        """The most columns that a token has inside an MLP."""
        return max(self.intermediate, self.experts.routing.chosen * self.experts.inner) if self.experts else self.intermediate

    def experts_of(self, layer: int) -> ExpertTable | None:
        """The experts of a layer."""
        return None if self.layers[layer].dense else self.experts


def read_table(config: dict[str, Any], experts: bool = False) -> DecoderTable:
    """The table of a config.json. `experts`: also of a model with experts, latent attention or attention sinks, which not every device
    runs from its table. Raises UnsupportedFamily."""
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None and has_latent(config):
        return _latent_table(config, experts)
    if family is None:
        raise UnsupportedFamily(f"model type {str(model_type)[:60]!r} is not of the family")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedFamily(f"its activation is {str(config['hidden_act'])[:40]}")
    hidden, heads = read_count(config, "hidden_size"), read_count(config, "num_attention_heads")
    head_size = read_count(config, "head_dim") if config.get("head_dim") else hidden // heads
    kv_heads = heads if family.kv_heads and not config.get("num_key_value_heads") else read_count(config, "num_key_value_heads")
    if heads % kv_heads:
        raise UnsupportedFamily(f"{heads} query heads do not share {kv_heads} key heads evenly")
    scale = _scales(config) if family.scaled else {}
    biases = [bool(config.get(field, False)) for field in family.bias_fields]
    own = read_experts(config, str(model_type)) if model_type in NAMES else None
    table = DecoderTable(
        model_type=str(model_type),
        vocab_size=read_count(config, "vocab_size"),
        max_positions=read_count(config, "max_position_embeddings"),
        hidden=hidden,
        intermediate=read_count(config, "intermediate_size") if own is None else own.routing.chosen * own.inner,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        layers=_layers(config, family),
        rotary=read_rotary(config, head_size, family.rotary_base),
        epsilon=read_number(config, "rms_norm_eps", family.epsilon),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        qkv_bias=bool(config.get(family.bias_fields[0], family.qkv_bias)),
        output_bias=biases[1],
        mlp_bias=biases[2],
        query_norm=family.query_norm,
        merged=family.merged,
        embedding_scale=scale.get("embedding", 1.0),
        attention_scale=scale.get("attention", head_size**-0.5),
        residual_scale=scale.get("residual", 1.0),
        logit_scale=1.0 / scale.get("logits", 1.0),
        sinks=family.sinks,
        experts=own,
    )
    if not experts and (table.experts or table.sinks):
        raise UnsupportedFamily("this device runs no experts or attention sinks from a table")
    return table


def _latent_table(config: dict[str, Any], experts: bool) -> DecoderTable:
    """The table of a model with latent attention. Raises UnsupportedFamily."""
    if not experts:
        raise UnsupportedFamily("this device runs no latent attention from a table")
    heads, count = read_count(config, "num_attention_heads"), read_count(config, "num_hidden_layers")
    sizes, sparse = read_latent(config, heads), expert_layers(config, count)
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedFamily(f"its activation is {str(config['hidden_act'])[:40]}")
    own = read_deepseek_experts(config) if any(sparse) else None
    bias = bool(config.get("attention_bias", False))
    rotary = read_rotary(config, sizes.rope, LATENT.rotary_base)
    if rotary.size != sizes.rope:
        raise UnsupportedFamily("only some of the elements with positions of its latent attention are rotated")
    return DecoderTable(
        model_type=str(config.get("model_type")),
        vocab_size=read_count(config, "vocab_size"),
        max_positions=read_count(config, "max_position_embeddings"),
        hidden=read_count(config, "hidden_size"),
        intermediate=read_count(config, "intermediate_size")
        if own is None or not all(sparse)
        else own.routing.chosen * own.inner,
        heads=heads,
        kv_heads=heads,
        head_size=sizes.key,
        layers=tuple(DecoderLayer(None, True, not each) for each in sparse),
        rotary=rotary,
        epsilon=read_number(config, "rms_norm_eps", LATENT.epsilon),
        tied=bool(config.get("tie_word_embeddings", LATENT.tied)),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=False,
        query_norm=False,
        merged=False,
        embedding_scale=1.0,
        attention_scale=latent_scale(config, sizes),
        residual_scale=1.0,
        logit_scale=1.0,
        experts=own,
        latent=sizes,
        extra_layers=int(config.get("num_nextn_predict_layers", config.get("num_mtp_layers", 0)) or 0),
    )


def _layers(config: dict[str, Any], family: Family) -> tuple[DecoderLayer, ...]:
    count = read_count(config, "num_hidden_layers")
    rotary_layers = _rotary_layers(config, count) if family.no_rotary else [True] * count
    window = config.get("sliding_window", family.window)
    if family.windows == "none" and config.get("use_sliding_window"):
        raise UnsupportedFamily("it uses its sliding window")
    if window is None or family.windows == "none":
        return tuple(DecoderLayer(None, rotary) for rotary in rotary_layers)
    if not isinstance(window, int) or window < 1:
        raise UnsupportedFamily(f"its sliding window is {str(window)[:40]}")
    kinds = ["sliding_attention"] * count if family.windows == "all" else _kinds(config, family, count, rotary_layers)
    return tuple(
        DecoderLayer(window if kind == "sliding_attention" else None, rotary)
        for kind, rotary in zip(kinds, rotary_layers, strict=True)
    )


def _kinds(config: dict[str, Any], family: Family, count: int, rotary_layers: list[bool]) -> list[str]:
    """The kind of attention of each layer, where only some have the window."""
    named = config.get("layer_types")
    if family.windows == "named":
        if not named:
            raise UnsupportedFamily("its config has no layer_types")
    elif not config.get("use_sliding_window", False):
        return ["full_attention"] * count
    if named is None:
        if "no_rope_layers" in config or "no_rope_layer_interval" in config:
            return ["full_attention" if rotary else "sliding_attention" for rotary in rotary_layers]
        first = config.get("max_window_layers", 28)
        return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    if not isinstance(named, list) or len(named) != count or not set(named) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedFamily("its layer_types are not full or sliding attention, one per layer")
    return named


def _rotary_layers(config: dict[str, Any], count: int) -> list[bool]:
    """Which layers have RoPE: SmolLM3 leaves it out in every fourth layer."""
    named = config.get("no_rope_layers")
    if named is None:
        interval = config.get("no_rope_layer_interval", 4)
        return [bool((layer + 1) % interval) for layer in range(count)]
    if not isinstance(named, list) or len(named) != count:
        raise UnsupportedFamily("its no_rope_layers are not one per layer")
    return [bool(value) for value in named]


def _scales(config: dict[str, Any]) -> dict[str, float]:
    return {
        "embedding": read_number(config, "embedding_multiplier", 1.0),
        "attention": read_number(config, "attention_multiplier", 1.0),
        "residual": read_number(config, "residual_multiplier", 1.0),
        "logits": read_number(config, "logits_scaling", 1.0),
    }


def projections(table: DecoderTable, layer: int = 0) -> dict[str, tuple[tuple[int, int], bool]]:
    """Shape [out, in] and bias of a layer's projections, except for those of experts."""
    queries, keys, inner = table.heads * table.head_size, table.kv_heads * table.head_size, table.intermediate
    if table.latent is not None:
        return _latent_projections(table, table.latent, table.experts_of(layer) is None)
    if table.merged:
        inputs = {"self_attn.qkv_proj": (queries + 2 * keys, table.qkv_bias), "mlp.gate_up_proj": (2 * inner, table.mlp_bias)}
    else:
        inputs = {f"self_attn.{name}_proj": (size, table.qkv_bias) for name, size in (("q", queries), ("k", keys), ("v", keys))}
        inputs |= {f"mlp.{name}_proj": (inner, table.mlp_bias) for name in ("gate", "up")}
    outputs = {"self_attn.o_proj": ((table.hidden, queries), table.output_bias)}
    if table.experts is None:
        outputs["mlp.down_proj"] = ((table.hidden, inner), table.mlp_bias)
    else:
        inputs = {name: shape for name, shape in inputs.items() if name.startswith("self_attn")}
    return {name: ((size, table.hidden), bias) for name, (size, bias) in inputs.items()} | outputs


def _latent_projections(table: DecoderTable, sizes: LatentSizes, dense: bool) -> dict[str, tuple[tuple[int, int], bool]]:
    hidden, inner, queries = table.hidden, table.intermediate, table.heads * sizes.key
    found = {"self_attn.kv_a_proj_with_mqa": ((sizes.kv_rank + sizes.rope, hidden), table.qkv_bias)}
    if sizes.query_rank:
        found["self_attn.q_a_proj"] = ((sizes.query_rank, hidden), table.qkv_bias)
        found["self_attn.q_b_proj"] = ((queries, sizes.query_rank), False)
    else:
        found["self_attn.q_proj"] = ((queries, hidden), False)
    found["self_attn.kv_b_proj"] = ((table.heads * (sizes.nope + sizes.value), sizes.kv_rank), False)
    found["self_attn.o_proj"] = ((hidden, table.heads * sizes.value), table.output_bias)
    if dense:
        found |= {f"mlp.{name}_proj": ((inner, hidden), False) for name in ("gate", "up")}
        found["mlp.down_proj"] = ((hidden, inner), False)
    return found
