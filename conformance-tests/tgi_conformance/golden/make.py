"""Make the golden checkpoints and their transcripts: `python -m tgi_conformance.golden.make`.

The tiny models have random weights, spread so that no two tokens tie. Every token comes from a full forward pass of transformers'
own definition in float32, without a cache, and from the formula as `reference_sampling.py` states it. A case is kept only if
rounding could not have changed any of its tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tgi_conformance.golden import ADAPTERS, HERE, TRANSCRIPT, image_models, toy
from tgi_conformance.golden.adapting import TARGETS, make_adapter, write_config
from tgi_conformance.masks import allows
from tgi_conformance.reference_sampling import Scores, draw, logprobs, penalized
from tgi_core.backend import Sampling

VOCAB, TOY_VOCAB, POSITIONS = 250, 24, 2048
LEARNED_POSITIONS, TOY_LARGE_POSITIONS = 128, 4096
"""Numbers of positions: few where they are learned, since each takes a row of weights; more for the larger toy."""
NEW_TOKENS, TOPS = 14, 4
FAR = 128
"""The position up to which some rows are generated token by token."""
SURE = 2e-4
"""How far each draw must be from a boundary, in probability."""

PROMPTS = (
    (3, 1, 4, 1, 5),
    (9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4),
    (2,),
    (12, 7, 7, 19, 23, 0, 11, 8, 5, 17, 21, 13, 4, 16, 9, 1),
)

WAYS: dict[str, Sampling] = {
    "greedy": Sampling(),
    "temperature": Sampling(True, 1.4),
    "cool": Sampling(True, 0.6),
    "top-k": Sampling(True, 1.5, top_k=5),
    "top-p": Sampling(True, 1.2, top_p=0.8),
    "top-k-top-p": Sampling(True, 2.0, top_k=6, top_p=0.9),
    "typical": Sampling(True, 1.3, typical_p=0.7),
    "repetition": Sampling(repetition_penalty=1.7),
    "repetition-sampled": Sampling(True, 1.5, repetition_penalty=1.4),
    "frequency": Sampling(frequency_penalty=1.6),
    "presence": Sampling(presence_penalty=2.5),
    "counts-sampled": Sampling(True, 1.5, frequency_penalty=0.7, presence_penalty=-0.5),
    "bias": Sampling(logit_bias=((3, 3.0), (4, 2.5), (5, -20.0))),
}

MASKED: dict[str, Sampling] = {
    "masked-greedy": Sampling(),
    "masked-sampled": Sampling(True, 1.6),
    "masked-top-p": Sampling(True, 2.0, top_k=9, top_p=0.8, repetition_penalty=1.2),
}
"""With the suite's ALTERNATING masks."""

FAR_WAYS: dict[str, Sampling] = {"greedy": Sampling(), "penalized": Sampling(repetition_penalty=1.1, frequency_penalty=0.1)}
"""Token by token from a short prompt up to FAR."""

END_WAYS: dict[str, Sampling] = {"greedy": Sampling(), "sampled": Sampling(True, 1.2)}
"""From a long prompt to the last position."""

ADAPTED_MODEL = "llama"
"""The real checkpoint whose adapters have transcripts."""
ADAPTED_MODELS = (ADAPTED_MODEL, "gemma2")
"""The real checkpoints that have adapters."""

Model = Callable[[Sequence[int], Sequence[int]], list[Scores]]
"""Returns the logits after each position of a row, including those of the extra tokens that a mask allows."""


ADAPTED: dict[str, Sampling] = {"adapted-greedy": Sampling(), "adapted-sampled": Sampling(True, 1.4)}
"""With each adapter."""


def write(name: str, model: Model, adapted: Mapping[str, Model]) -> None:
    """Write the transcripts of a checkpoint, alone and with adapters by name."""
    cases: list[dict[str, Any]] = []
    for prompt in PROMPTS:
        for way, how in WAYS.items():
            cases += _sure(f"{way}-{len(prompt)}", model, prompt, how)
        for way, how in MASKED.items():
            cases += [case | {"masked": True} for case in _sure(f"{way}-{len(prompt)}", model, prompt, how, masked=True)]
        for adapter, changed in adapted.items():
            for way, how in ADAPTED.items():
                cases += [case | {"adapter": adapter} for case in _sure(f"{way}-{adapter}-{len(prompt)}", changed, prompt, how)]
    folder = HERE / name
    config = json.loads((folder / "config.json").read_text())
    cases += _farther(model, config.get("max_position_embeddings") or config["n_positions"])
    first = next(case for case in cases if case["id"].startswith("greedy"))
    value = {"eos": first["tokens"][2], "cases": cases}
    config["eos_token_id"] = value["eos"]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / TRANSCRIPT).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def _farther(model: Model, positions: int) -> list[dict[str, Any]]:
    """Return cases of long rows, without top tokens and prompt logprobs."""
    cases = []
    ways = [("far", 5, FAR - 5, FAR_WAYS), ("end", positions - NEW_TOKENS, NEW_TOKENS, END_WAYS)]
    for kind, length, count, hows in ways:
        for way, how in hows.items():
            prompts = (
                tuple((7 * index + index // 3 + first) % TOY_VOCAB for index in range(length)) for first in range(TOY_VOCAB)
            )
            found = (_sure(f"{kind}-{way}", model, prompt, how, count=count) for prompt in prompts)
            cases += [case | {"tops": [], "prompt_logprobs": []} for case in next(filter(None, found))]
    return cases


def _sure(
    id: str, model: Model, prompt: tuple[int, ...], how: Sampling, masked: bool = False, count: int = NEW_TOKENS
) -> list[dict[str, Any]]:
    """Return the case with the first seed for which no token is near a boundary, or none if there is no such seed."""
    for seed in range(40) if how.do_sample else (0,):
        seeded = Sampling(**asdict(how) | {"seed": seed, "logit_bias": how.logit_bias})
        case = _transcript(model, prompt, seeded, masked, count)
        if case is not None:
            return [{"id": id, "prompt": prompt, "sampling": _changed(seeded)} | case]
    return []


def _changed(how: Sampling) -> dict[str, Any]:
    plain = asdict(Sampling())
    return {name: value for name, value in asdict(how).items() if value != plain[name]}


def _transcript(model: Model, prompt: tuple[int, ...], how: Sampling, masked: bool, count: int) -> dict[str, Any] | None:
    tokens, made, tops = list(prompt), [], []
    for _ in range(count):
        made_so_far = len(tokens) - len(prompt)
        allowed = [token for token in range(VOCAB) if allows(made_so_far, token)] if masked else []
        scores = penalized(model(tokens, allowed)[-1], how, tokens, len(prompt))
        if masked:
            scores = {token: score for token, score in scores.items() if allows(made_so_far, token)}
        drawn = draw(scores, how, len(tokens), SURE)
        if not drawn.sure:
            return None
        described = _described(scores, how)
        tokens.append(drawn.token)
        made.append(_rounded(drawn.logprob))
        tops.append([[token, _rounded(value)] for token, value in described[:TOPS]])
    before = [logprobs(scores) for scores in model(prompt, ())]
    following = [_rounded(before[i].get(token, -math.inf)) for i, token in enumerate(prompt[1:])]
    return {"tokens": tokens[len(prompt) :], "logprobs": made, "tops": tops, "prompt_logprobs": [None, *following]}


def _described(scores: Scores, how: Sampling) -> list[tuple[int, float]]:
    from tgi_conformance.reference_sampling import filtered

    kept = filtered(scores, how) if how.do_sample else logprobs(scores)
    return sorted(kept.items(), key=lambda item: (-item[1], item[0]))


def _rounded(value: float) -> float:
    return value if math.isinf(value) else round(value, 5)


def make_toys() -> None:
    """Make the toy in two sizes; the larger one has no transcripts."""
    for name, vocab, positions in (("toy", TOY_VOCAB, POSITIONS), ("toy-large", VOCAB, TOY_LARGE_POSITIONS)):
        (HERE / name).mkdir(parents=True, exist_ok=True)
        config = {"model_type": "tgi-toy", "vocab_size": vocab, "max_position_embeddings": positions}
        (HERE / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in TARGETS:
        write_config(HERE / "toy" / ADAPTERS / name, name)
    write("toy", _toy(), {name: _toy(name) for name in TARGETS})


def _toy(adapter: str = "") -> Model:
    """Return the small toy, with or without an adapter."""
    return lambda tokens, others: toy.scores(tokens, TOY_VOCAB, [token for token in others if token < TOY_VOCAB], adapter)


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": LEARNED_POSITIONS,
        "max_position_embeddings": LEARNED_POSITIONS,
    },
    "gemma2": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
    },
}
"""Grouped queries and rotary positions, with heads of a size that native kernels support; learned positions; sliding window and
softcaps."""


def make_real(name: str) -> None:
    """Make a random checkpoint of one type, and its transcripts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(11)
    fields = {"vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(name, **fields | {"initializer_range": 0.25, "tie_word_embeddings": False} | CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for parameter_name, value in model.named_parameters():
        if value.ndim == 1:
            value.data += 0.1 * torch.randn(value.shape)
        if "lm_head" in parameter_name:
            value.data *= 1.5
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    adapters = TARGETS if name in ADAPTED_MODELS else ()
    merged = {adapter: make_adapter(folder / ADAPTERS / adapter, adapter, model) for adapter in adapters}
    adapted = {adapter: _scoring(changed) for adapter, changed in merged.items() if name == ADAPTED_MODEL}
    write(name, _scoring(model), adapted)
    (folder / "generation_config.json").unlink(missing_ok=True)


def _scoring(model: Any) -> Model:
    """Wrap a transformers model as a function of a row."""
    import torch

    def scores(tokens: Sequence[int], others: Sequence[int]) -> list[Scores]:
        with torch.inference_mode():
            logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0].double()
        return [dict(enumerate(row)) for row in logits.tolist()]

    return scores


def main() -> None:
    """Make all checkpoints."""
    Path(HERE).mkdir(exist_ok=True)
    make_toys()
    for name in CONFIGS:
        make_real(name)
    image_models.make()


if __name__ == "__main__":
    main()
