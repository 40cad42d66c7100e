"""Layers for multi-token prediction guess what their formula says, keep their cache right, and change no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.mtp_files import DEEPSEEK, FILE, MIMO, QWEN, Brought, add_layer, bring, change_config, counting_mimo
from tests.engine.observing import PLAN, Observed, counted, said, turns
from tests.engine.quantized_files import fp8, write_quantized
from tests.engine.speculator_files import base_model
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import PROMPTS, open_cpu, save_tiny
from tgi_core.backend import Capacity, Feature, Grant, InvalidModel
from tgi_core.backend.session import Session
from tgi_core.engine.speculators.files import MOST

DENSE: dict[str, Any] = {"first_k_dense_replace": 9}
WIDTHS: dict[str, Any] = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
"""Keys as wide as values: the CPU's kernels have no others, and without them, there are no drafts."""
MODELS: dict[str, Callable[[Path], Brought]] = {
    "deepseek_v3": lambda folder: bring(folder, "deepseek_v3", **DENSE, **WIDTHS),
    "glm4_moe": lambda folder: bring(folder, "glm4_moe", **DENSE),
    "mimo": lambda folder: bring(folder, "mimo", MIMO),
    "qwen3, by Qwen's names": lambda folder: bring(folder, "qwen3", QWEN),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Brought:
    """A model of each layout. Experts in float32 run no drafts, so these have none."""
    return MODELS[request.param](tmp_path_factory.mktemp("model"))


def opened(folder: Path, **options: str) -> tuple[Session, Capacity]:
    """A session that uses the layers of its own model."""
    return open_cpu(folder, replace(PLAN, block_size=16), speculator=str(folder), **options)


def test_it_guesses_what_its_formula_says(model: Brought) -> None:
    """Over a prompt in chunks, beside another row, and whatever drafts were accepted; the tokens are those of the model alone."""
    session, capacity = opened(model.folder)
    assert said(session.capabilities())[0] == "mtp" and session.capabilities().proposals == MOST
    run = Observed(session, capacity)

    def check() -> None:
        for id, row in run.rows.items():
            assert len(row.proposed) == 3
            logits = model.logits([*PROMPTS[id - 1], *run.tokens[id]], row.proposed)
            assert row.proposed == tuple(logits.argmax(-1).tolist())

    turns(run, check)
    for id in (1, 2):
        assert run.tokens[id] == model.expected[id - 1][: len(run.tokens[id])]


def test_a_prefix_is_shared_with_its_cache(model: Brought) -> None:
    """A row that goes on behind a block of another with the same tokens finds its keys and values there."""
    session, capacity = opened(model.folder)
    prompt = (*PROMPTS[0], *PROMPTS[1], *PROMPTS[2])
    run = Observed(session, capacity)
    first = run.request(1, prompt, len(prompt))
    run.step(first)
    shared = replace(run.request(2, prompt, len(prompt) - 16), cached=16)
    run.step(replace(shared, blocks=((first.blocks[0][0], *shared.blocks[0][1:]),)), grants=(Grant(1, 0),))
    proposed = run.rows[2].proposed
    assert proposed == tuple(model.logits([*prompt, *run.tokens[2]], proposed).argmax(-1).tolist())


def test_logprobs_of_a_prompt_beside_it(model: Brought) -> None:
    """They are those of a model without the layer, to the bit."""
    found = []
    for session, capacity in (open_cpu(model.folder, PLAN), opened(model.folder)):
        run = Observed(session, capacity)
        request = run.request(1, PROMPTS[0], len(PROMPTS[0]))
        run.step(replace(request, want=replace(request.want, prompt_logprobs=True)), run.request(2, PROMPTS[1], len(PROMPTS[1])))
        found.append([(row.tokens, row.logprobs, row.prompt_logprobs) for row in run.rows.values()])
    assert found[0] == found[1]


@pytest.mark.parametrize(("model_type", "sizes"), [("deepseek_v3", WIDTHS), ("glm4_moe", {})])
def test_its_experts_in_bfloat16(model_type: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    """Nearly each guess is the likeliest by the formula but for rounding, which may choose other experts; drafts change no token."""
    model = bring(tmp_path / "model", model_type, **sizes)
    session, capacity = opened(model.folder, dtype="bfloat16")
    assert said(session.capabilities())[0] == "mtp"
    run, near = Observed(session, capacity), list[bool]()

    def check() -> None:
        for id, row in run.rows.items():
            logits = model.logits([*PROMPTS[id - 1], *run.tokens[id]], row.proposed)
            chosen = logits.gather(1, torch.tensor(row.proposed).unsqueeze(1))[:, 0]
            near.extend((logits.max(-1).values - chosen < 0.3 * logits.std(-1)).tolist())

    turns(run, check)
    assert len(near) == 30 and sum(near) >= 24
    alone = Observed(*open_cpu(model.folder, replace(PLAN, block_size=16, draft=0), dtype="bfloat16"))
    turns_alone(alone)
    for id in (1, 2):
        assert run.tokens[id][:5] == alone.tokens[id][:5]


def turns_alone(run: Observed) -> None:
    """A few steps without drafts."""
    run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])), run.request(2, PROMPTS[1], len(PROMPTS[1])))
    for _ in range(4):
        run.step()


@pytest.mark.parametrize(("dtype", "cache_dtype"), [("float32", "auto"), ("bfloat16", "int8")])
def test_a_right_layer_is_right_for_many_tokens(dtype: str, cache_dtype: str, tmp_path: Path) -> None:
    """One that knows what the model says: each draft is accepted, across blocks, in the model's dtype and that of its cache."""
    base = counting_mimo(tmp_path / "model")
    options = {"dtype": dtype, "cache_dtype": cache_dtype, "speculator": str(base)}
    session, capacity = open_cpu(base, replace(PLAN, block_size=16, draft=5), **options)
    assert counted(Observed(session, capacity)) == [(22 + 2 * place) % 64 for place in range(13)]


def test_a_quantized_layer(tmp_path: Path) -> None:
    """It guesses what the dense one of the same numbers guesses."""
    model = bring(tmp_path / "model", "mimo", MIMO)
    settings = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    found = []
    for folder in write_quantized(model.folder, tmp_path / "made", fp8("weight_scale_inv", (16, 16)), settings, r"_proj\.weight"):
        session, capacity = opened(folder)
        assert said(session.capabilities())[0] == "mtp"
        run = Observed(session, capacity)
        run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])))
        found.append((run.tokens[1], run.rows[1].proposed))
    assert found[0] == found[1] and len(found[0][1]) == 3


def test_its_memory_is_told(model: Brought) -> None:
    """Weights but for those that it shares, and its cache in that of the model; nothing unless drafts are asked for."""
    alone, with_layer = (
        {item.name: item.num_bytes for item in capacity.memory}
        for _, capacity in (open_cpu(model.folder, replace(PLAN, block_size=16)), opened(model.folder))
    )
    layer = DEEPSEEK.prefix, MIMO.prefix, QWEN.prefix
    own = {name: value for name, value in load_file(model.folder / FILE).items() if name.startswith(layer)}
    matrices = sum(value.nbytes for name, value in own.items() if value.ndim == 2 and len(value) < 512)
    assert with_layer["speculator"] == pytest.approx(matrices, rel=0.3)
    assert with_layer["kv cache"] > alone["kv cache"] and "speculator" not in alone


def altered(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A model with experts and its layer, with tensors changed."""
    bring(folder, "glm4_moe")
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / FILE, {"format": "pt"})
    return folder


AT = DEEPSEEK.prefix


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (f"{AT}hnorm.weight", None, f"lacks tensor '{AT}hnorm.weight'"),
        (f"{AT}self_attn.k_proj.weight", None, f"lacks tensor '{AT}self_attn.k_proj.weight'"),
        (f"{AT}mlp.experts.2.up_proj.weight", None, f"lacks tensor '{AT}mlp.experts.2.up_proj.weight'"),
        (f"{AT}eh_proj.weight", (64, 64), rf"tensor '{AT}eh_proj.weight' has shape \[64, 64\], the model's is \[64, 128\]"),
        (f"{AT}mlp.experts.1.up_proj.weight", (8, 64), rf"tensor '{AT}mlp.experts.1.up_proj.weight' has shape \[8, 64\]"),
    ],
)
def test_damaged_layers_are_named(name: str, shape: tuple[int, ...] | None, message: str, tmp_path: Path) -> None:
    """With file and tensor, in one line, when the model is opened with drafts; without, it is served."""

    def damage(tensors: dict[str, Tensor]) -> None:
        del tensors[name]
        if shape is not None:
            tensors[name] = torch.ones(shape)

    folder = altered(tmp_path / "model", damage)
    with pytest.raises(InvalidModel, match=message) as raised:
        opened(folder, dtype="bfloat16")
    assert "\n" not in str(raised.value) and str(folder / FILE) in str(raised.value)


def test_layers_that_are_not_there_or_not_known(tmp_path: Path) -> None:
    """Files that lack the layer, as quantized ones often do, and a layer with more than those of the model: served without, with the
    reason."""

    def drop(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(AT)]:
            del tensors[name]

    def add(tensors: dict[str, Tensor]) -> None:
        tensors[f"{AT}mlp.bonus.weight"] = torch.ones(2)

    for number, (change, reason) in enumerate(((drop, "hold none of the layers"), (add, f"holds tensor '{AT}mlp.bonus.weight'"))):
        session, _ = opened(altered(tmp_path / str(number), change), dtype="bfloat16")
        name, why = said(session.capabilities())
        assert name == "none" and reason in why
        assert Feature.SPECULATION in session.capabilities().features


def test_models_that_run_no_drafts_say_so(tmp_path: Path) -> None:
    """Qwen3-Next keeps states, so its layer is not used."""
    folder = save_tiny("qwen3_next", tmp_path / "model")
    base = base_model(folder)
    parts = [torch.ones(2, 2)] * 4
    add_layer(folder, QWEN, parts, torch.nn.Linear(2, 2), base, "qwen3_next")
    change_config(folder, num_nextn_predict_layers=1)
    session, _ = open_cpu(folder, PLAN, speculator=str(folder))
    name, reason = said(session.capabilities())
    assert name == "none" and ("cannot be rolled back" if TRANSFORMERS_5 else "row by row") in reason
