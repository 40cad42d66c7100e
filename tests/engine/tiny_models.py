"""Tiny random checkpoints of any model type, and the comparison with transformers' `generate`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tgi_core.backend import (
    EMPTY,
    BackendError,
    CacheKind,
    Capacity,
    Feature,
    Grant,
    Handle,
    OpenOptions,
    OutputOptions,
    Request,
    WarmupPlan,
)
from tgi_core.backend.session import Session

VOCAB = 512
NEW_TOKENS = 10
PROMPTS = ((11, 45, 7, 300, 28, 91, 5, 211, 64), (99, 17, 250, 33, 8), (21, 400, 31, 41, 59, 26, 53, 58, 97, 93, 23, 84, 62))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one type: `verdict` is exact, differs or unsupported; `path` is that of `path_of`, or batched for
    encoder-decoders."""

    verdict: str
    path: str
    note: str = ""


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "intermediate_size": 96,
    "d_ff": 96,
    "ffn_dim": 96,
    "ffn_hidden_size": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "n_inner": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "decoder_layers": 4,
    "encoder_layers": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_head_size": 16,
    "d_kv": 16,
    "kv_channels": 16,
    "rotary_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "max_seq_len": 256,
    "max_sequence_length": 256,
    "sliding_window": 6,
    "attention_chunk_size": 8,
    "window_size": 6,
    "index_topk": 4,
    "initializer_range": 0.15,
    "attention_dropout": 0.0,
    "is_decoder": True,
    "tie_word_embeddings": False,
}
"""What every config is cut down to, where it has the field."""


def tiny_config(model_type: str, **overrides: Any) -> PretrainedConfig:
    """A small config of a type, of the class that transformers maps it to."""
    kind = CONFIG_MAPPING[model_type]
    config = kind(**_shrunk(kind(), SPECIAL.get(model_type, {})) | overrides)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        for holder in (config, config.get_text_config(decoder=True)):
            if hasattr(holder, name):
                setattr(holder, name, 0 if name == "pad_token_id" else 1)
    return config


def _shrunk(default: PretrainedConfig, special: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments for a small version of a default config."""
    fields = {name: value for name, value in SMALL.items() if _has(default, name)}
    for name in getattr(default, "sub_configs", None) or {}:
        nested = getattr(default, name, None)
        if isinstance(nested, PretrainedConfig) and name not in special:
            fields[name] = _shrunk(nested, {}) | ({"model_type": nested.model_type} if nested.model_type else {})
    if "qk_rope_head_dim" in fields:
        # Latent attention: the rotary part is all that `head_dim` means, and every query head has its own keys and values.
        fields |= {name: value for name, value in (("head_dim", 8), ("num_key_value_heads", 4)) if name in fields}
    return fields | special


def _has(config: PretrainedConfig, name: str) -> bool:
    """Whether a field can be set and means something."""
    if name in config.attribute_map or isinstance(getattr(type(config), name, None), property):
        return False
    if name in (getattr(config, "per_layer_attributes", None) or ()) or (
        name in PER_LAYER and name in inspect.signature(type(config)).parameters
    ):
        return True
    return getattr(config, name, None) is not None


PER_LAYER = ("head_dim", "num_key_value_heads", "num_attention_heads")
"""Fields that are None by default or differ from layer to layer, and matter all the same."""

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8}
DELTA = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
MIXED = ["linear_attention", "full_attention"] * 2

SPECIAL: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": MIXED, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_local_experts": 4},
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "cohere_compass_text": {
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": 1e4} for name in ("sliding_attention", "full_attention")}
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 128, **MAMBA},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, **MAMBA},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8, "mamba_dt_rank": 8},
    "kimi_linear": {"layer_types": MIXED, "linear_head_dim": 16, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 32,
    },
    "qwen3_next": {"layer_types": MIXED, **DELTA},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 16, "chunk_size": 8},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""What single types need beside, or instead of, `SMALL`."""


def save_tiny(model_type: str, folder: Path, **overrides: Any) -> Path:
    """Write a random checkpoint, and return its directory."""
    torch.manual_seed(0)
    config = tiny_config(model_type, **overrides)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    scatter(model)
    model.save_pretrained(folder)
    return folder


def scatter(model: PreTrainedModel) -> None:
    """Give vectors that start as zeros or ones some spread: norms, biases and sinks that are wrong should show."""
    generator = torch.Generator().manual_seed(1)
    for name, value in model.named_parameters():
        if (
            value.ndim == 1
            and value.is_floating_point()
            and ("norm" in name or "bias" in name or "sink" in name or "ln_" in name)
        ):
            value.data += 0.1 * torch.randn(value.shape, generator=generator)


def expected_tokens(folder: Path) -> list[list[int]]:
    """Greedy tokens of transformers' own `generate`, prompt by prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name in ("eos_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        setattr(model.generation_config, name, None)
    made = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS, pad_token_id=0
        )
        made.append(out[0, -NEW_TOKENS:].tolist())
    return made


class Schedule:
    """Drives a session as the scheduler would, giving every request enough blocks for its whole life."""

    def __init__(self, session: Session, capacity: Capacity) -> None:
        self.session, self.capacity = session, capacity
        self.handle: Handle = EMPTY
        self.tokens: dict[int, list[int]] = {}
        self.next_block = 1

    def request(self, id: int, prompt: tuple[int, ...], take: int) -> Request:
        """A greedy request whose blocks nobody else has, one of them where there are states."""
        blocks = []
        for group in self.capacity.groups:
            states = group.kind is CacheKind.STATE
            first = len(self.tokens) + 1 if states else self.next_block
            count = 1 if states else -(-(len(prompt) + NEW_TOKENS) // group.block_size)
            blocks.append(tuple(range(first, first + count)))
        self.next_block += max(map(len, blocks))
        self.tokens[id] = []
        return Request(id, prompt, len(prompt), 0, tuple(blocks), take)

    def step(self, *requests: Request, grants: tuple[Grant, ...] = ()) -> None:
        """One step: join if there are requests, else go on."""
        step = self.session.prefill(requests, self.handle, grants) if requests else self.session.decode((self.handle,), grants)
        self.handle = step.handle
        for row in self.session.rows(step).rows:
            if row.fault:
                raise RuntimeError(row.fault.message)
            self.tokens[row.request_id] += row.tokens

    def leave(self, id: int) -> None:
        """Filter a request away."""
        self.handle = self.session.filter(self.handle, tuple(i for i in self.live() if i != id))

    def live(self) -> Iterator[int]:
        """Requests that have not left."""
        return (i for i in self.tokens if i not in self.gone)

    gone: frozenset[int] = frozenset()


def ragged_schedule(session: Session, capacity: Capacity) -> dict[int, list[int]]:
    """The first prompt in chunks, the second joins, the third joins in chunks while the others decode, the second leaves."""
    chunked = Feature.CHUNKED_PREFILL in session.capabilities().features
    run = Schedule(session, capacity)
    run.step(run.request(1, PROMPTS[0], 4 if chunked else len(PROMPTS[0])))
    run.step(run.request(2, PROMPTS[1], len(PROMPTS[1])), grants=(Grant(1, 5),) if chunked else ())
    run.step()
    run.step(run.request(3, PROMPTS[2], 6 if chunked else len(PROMPTS[2])))
    if chunked:
        run.step(grants=(Grant(3, 5),))
        run.step(grants=(Grant(3, 2),))
    run.step()
    run.leave(2)
    run.gone = frozenset({2})
    for _ in range(NEW_TOKENS):
        for id in tuple(run.live()):
            if len(run.tokens[id]) >= NEW_TOKENS:
                run.leave(id)
                run.gone |= {id}
        if not tuple(run.live()):
            break
        run.step()
    return run.tokens


def drafted_schedule(session: Session, capacity: Capacity) -> tuple[dict[int, list[int]], set[int]]:
    """The tokens of the first two prompts, made with drafts: in turn all right, wrong at the second place, and none for the second row.

    Also how many tokens rows made in a step. Raises AssertionError if they are others than without drafts.
    """
    plain, run, counts = ragged_schedule(session, capacity), Schedule(session, capacity), set[int]()
    session.clear(None)
    run.step(*(run.request(id, PROMPTS[id - 1], len(PROMPTS[id - 1])) for id in (1, 2)))
    for turn in range(3):
        grants = []
        for id in (1, 2) if turn < 2 else (1,):
            made = len(run.tokens[id])
            drafts = plain[id][made : made + capacity.draft]
            if turn == 1:
                drafts[1:2] = [(token + 1) % VOCAB for token in drafts[1:2]]
            grants.append(Grant(id, 1 + len(drafts), drafts=tuple(drafts)))
        before = {id: len(tokens) for id, tokens in run.tokens.items()}
        run.step(grants=tuple(grants))
        counts |= {len(tokens) - before[id] for id, tokens in run.tokens.items()}
    session.clear(None)
    assert all(tokens[: len(plain[id])] == plain[id][: len(tokens)] for id, tokens in run.tokens.items())
    return run.tokens, counts


def silent(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


def scored_prompt(session: Session, capacity: Capacity) -> list[float]:
    """Logprobs of the tokens of a prompt after its first."""
    asked = replace(
        Schedule(session, capacity).request(99, PROMPTS[2], len(PROMPTS[2])), want=OutputOptions(prompt_logprobs=True)
    )
    (row,) = session.rows(session.prefill((asked,), EMPTY, ())).rows
    session.clear(None)
    return [value for value in row.prompt_logprobs if value is not None]


def open_cpu(folder: Path, plan: WarmupPlan | None = None, **options: Any) -> tuple[Session, Capacity]:
    """The CPU backend's session on a checkpoint, behind the core's own wrapper."""
    from tgi_backend_cpu import plugin

    session = Session(plugin.backend_open(OpenOptions(str(folder), **options), silent), "cpu")
    return session, session.warmup(plan or WarmupPlan(max_rows=4, max_row_tokens=64), silent)


ANY_ERROR = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BackendError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What a model's code may raise on a blindly shrunk config; the table says which it was."""


def compare(model_type: str, folder: Path) -> Outcome:
    """Make, run and compare one type; never raises for what a model's code does."""
    logging.disable(logging.WARNING)
    try:
        save_tiny(model_type, folder)
        AutoConfig.from_pretrained(folder)
        expected = expected_tokens(folder)
    except ANY_ERROR as error:
        return Outcome("unsupported", "", f"transformers: {short(error)}")
    try:
        session, capacity = open_cpu(folder, dtype="float32")
        path = path_of(session)
        made = ragged_schedule(session, capacity)
    except ANY_ERROR as error:
        return Outcome("unsupported", "", short(error))
    wrong = [i for i, tokens in enumerate(expected, 1) if made[i] != tokens[: len(made[i])] or not made[i]]
    distinct = len({token for tokens in expected for token in tokens})
    note = f"only {distinct} distinct token{'s' * (distinct > 1)}" if distinct < 4 else ""
    return Outcome("differs", path, f"prompts {wrong}") if wrong else Outcome("exact", path, note)


def path_of(session: Session) -> str:
    """How a session runs its model: ragged, by row (paged, but attention row by row) or own cache."""
    able = session.capabilities()
    if Feature.CHUNKED_PREFILL not in able.features:
        return "own cache"
    return "by row" if any(kernel.part == "rows" for kernel in able.kernels) else "ragged"


def short(error: BaseException) -> str:
    """An error in one cell of a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}".replace("|", "/")
