"""Speculators guess what their formulas say, from the right hidden state, and change no token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tgi_backend_static_cpu.kit import StaticCpuKit

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.observing import PLAN, Observed, said, turns
from tests.engine.speculator_files import Guess, base_model, hidden_states, medusa, mlp, trained_medusa
from tests.engine.static.opened import FLAT
from tests.engine.tiny_models import NEW_TOKENS, PROMPTS, VOCAB, expected_tokens, open_cpu, save_tiny, silent
from tgi_core.backend import Feature, Grant, InvalidModel, OpenOptions, Sampling
from tgi_core.backend.session import Session
from tgi_core.engine.open_model import open_session
from tgi_core.engine.static.session import open_static

Make = Callable[[Path, Path], tuple[Path, Guess]]
LAYOUTS: dict[str, Make] = {
    "medusa v1": lambda folder, base: medusa(folder, base, 1),
    "medusa v1, two layers": lambda folder, base: medusa(folder, base, 1, heads=4, layers=2),
    "medusa v2": lambda folder, base: medusa(folder, base, 2),
    "mlp_speculator": lambda folder, base: mlp(folder, base, tied=False, scaled=False),
    "mlp_speculator, tied": lambda folder, base: mlp(folder, base, tied=True, scaled=True, places=4),
}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the fused step, and one of transformers' modules."""
    overrides = {"n_head": 2} if request.param == "gpt2" else {}
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param), **overrides)


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_heads_guess_what_their_formula_says(make: Make, base: Path, tmp_path: Path) -> None:
    """In each step, beside another row, and whatever drafts were accepted; the tokens are those of the model alone."""
    folder, guess = make(tmp_path / "heads", base)
    session, capacity = open_cpu(base, PLAN, speculator=str(folder))
    model, run = base_model(base), Observed(session, capacity)
    assert session.capabilities().proposals == len(guess(hidden_states(model, [1, 2])[-1], 2))

    def check() -> None:
        for id, row in run.rows.items():
            text = [*PROMPTS[id - 1], *run.tokens[id]]
            with torch.inference_mode():
                assert row.proposed == tuple(guess(hidden_states(model, text[:-1])[-1], text[-1])[:3])

    turns(run, check)
    for id, tokens in zip((1, 2), expected_tokens(base), strict=False):
        assert run.tokens[id] == tokens[: len(run.tokens[id])]


def test_right_heads_are_drafts_that_are_kept(llama: Path, tmp_path: Path) -> None:
    """Heads that know the text guess what comes, and a step makes several tokens."""
    texts = [[*prompt, *tokens] for prompt, tokens in zip(PROMPTS, expected_tokens(llama), strict=True)]
    folder = trained_medusa(tmp_path / "heads", llama, texts[:2], 3)
    session, capacity = open_cpu(llama, PLAN, speculator=str(folder))
    run = Observed(session, capacity)
    run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])), run.request(2, PROMPTS[1], len(PROMPTS[1])))
    for _ in range(2):
        run.step(grants=tuple(Grant(id, 1 + len(row.proposed), drafts=row.proposed) for id, row in run.rows.items()))
        assert all(len(row.tokens) == 1 + row.drafted == 4 for row in run.rows.values())
    assert [run.tokens[id] for id in (1, 2)] == [text[-NEW_TOKENS : -NEW_TOKENS + 9] for text in texts[:2]]


def test_a_draft_model_runs_what_the_model_runs(base: Path) -> None:
    """A model that guesses for itself is always right: over chunks, rejected drafts, blocks that it crosses, and a reused prefix."""
    session, capacity = open_cpu(base, replace(PLAN, block_size=16), speculator=str(base))
    expected, run = expected_tokens(base), Observed(session, capacity)
    assert said(session.capabilities())[0].startswith("draft model")

    def check() -> None:
        for id, row in run.rows.items():
            made = len(run.tokens[id])
            assert row.proposed[: max(0, NEW_TOKENS - made)] == tuple(expected[id - 1][made : made + 3])

    turns(run, check)
    session.clear(None)
    prompt = (*PROMPTS[0], *expected[0], *PROMPTS[1])
    run = Observed(session, capacity)
    first = run.request(1, prompt, len(prompt))
    run.step(first)
    shared = replace(run.request(2, prompt, len(prompt) - 16), cached=16)
    run.step(replace(shared, blocks=((first.blocks[0][0], *shared.blocks[0][1:]),)), grants=(Grant(1, 0),))
    seen = run.rows[2].proposed
    run.step(grants=(Grant(1, 0), Grant(2, 4, drafts=seen)))
    assert len(run.rows[2].tokens) == 4


def test_a_draft_model_of_another_size(llama: Path, tmp_path: Path) -> None:
    """It guesses what it would say itself, and the model's tokens stay what they are. Its context may be shorter."""
    small = save_tiny("qwen2", tmp_path / "small", num_hidden_layers=2, max_position_embeddings=16)
    session, capacity = open_cpu(llama, PLAN, speculator=str(small))
    own, run = base_model(small), Observed(session, capacity)

    def check() -> None:
        for id, row in run.rows.items():
            text = [*PROMPTS[id - 1], *run.tokens[id]]
            made = own.generate(torch.tensor([text]), do_sample=False, max_new_tokens=3, eos_token_id=None, pad_token_id=0)
            assert row.proposed == (tuple(made[0, len(text) :].tolist()) if len(text) + 3 <= 16 else ())

    turns(run, check)
    for id, tokens in zip((1, 2), expected_tokens(llama), strict=False):
        assert run.tokens[id] == tokens[: len(run.tokens[id])]


def test_a_sampled_row_proposes_after_its_own_token(llama: Path, tmp_path: Path) -> None:
    """The token before the guesses is the one that was drawn, not the likeliest."""
    folder, guess = mlp(tmp_path / "heads", llama, tied=False, scaled=False)
    session, capacity = open_cpu(llama, PLAN, speculator=str(folder))
    model, run = base_model(llama), Observed(session, capacity)
    drawn = Sampling(do_sample=True, temperature=3.0, seed=5)
    run.step(replace(run.request(1, PROMPTS[0], len(PROMPTS[0])), sampling=drawn))
    [token] = run.rows[1].tokens
    with torch.inference_mode():
        assert run.rows[1].proposed == tuple(guess(hidden_states(model, list(PROMPTS[0]))[-1], token))
    assert token != expected_tokens(llama)[0][0]


def test_no_drafts_no_proposals(llama: Path, tmp_path: Path) -> None:
    """A plan without drafts gets no proposals; one with fewer drafts than there are heads gets that many."""
    folder, _ = medusa(tmp_path / "heads", llama, 1)
    for draft in (0, 2):
        session, capacity = open_cpu(llama, replace(PLAN, draft=draft), speculator=str(folder))
        run = Observed(session, capacity)
        run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])))
        assert len(run.rows[1].proposed) == draft


def test_its_memory_is_told(llama: Path, tmp_path: Path) -> None:
    """Heads are listed; a draft model's cache comes out of the memory for the model's."""
    folder, _ = medusa(tmp_path / "heads", llama, 1)
    _, capacity = open_cpu(llama, PLAN, speculator=str(folder))
    wanted = sum(tensor.numel() for tensor in load_file(folder / "medusa_lm_head.safetensors").values() if tensor.ndim == 2)
    assert next(share.num_bytes for share in capacity.memory if share.name == "speculator") >= 2 * wanted
    _, alone = open_cpu(llama, PLAN)
    _, beside = open_cpu(llama, PLAN, speculator=str(llama))
    held = [next(share.num_bytes for share in found.memory if share.name == "kv cache") for found in (alone, beside)]
    assert held[1] == 2 * held[0]


def broken(folder: Path, llama: Path, damage: str) -> Path:
    """A speculator with one fault."""
    layout, _, fault = damage.partition(": ")
    made, _ = medusa(folder, llama, 1) if layout == "medusa" else mlp(folder, llama, tied=False, scaled=False)
    config, file = json.loads((made / "config.json").read_text()), next(made.glob("*.safetensors"))
    tensors = load_file(file)
    match fault:
        case "no weights":
            file.unlink()
            return made
        case "no config":
            (made / "config.json").unlink()
            return made
        case "truncated":
            file.write_bytes(file.read_bytes()[:-4])
            return made
        case "a head less":
            del tensors["2.0.linear.weight"]
        case "another vocabulary":
            tensors["1.1.weight"] = tensors["1.1.weight"][:-1].contiguous()
        case "another hidden size":
            tensors["speculator.proj.0.weight"] = tensors["speculator.proj.0.weight"][:, 1:].contiguous()
        case "too many heads":
            config["medusa_num_heads"] = 99
        case "no number":
            config["inner_dim"] = "48"
        case "no switch":
            config["tie_weights"] = "yes"
    (made / "config.json").write_text(json.dumps(config))
    save_file(tensors, file)
    return made


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("medusa: no weights", "medusa_lm_head.safetensors: not found"),
        ("medusa: no config", "config.json: not found"),
        ("medusa: truncated", "truncated"),
        ("medusa: a head less", "lacks tensor '2.0.linear.weight'"),
        ("medusa: another vocabulary", r"tensor '1.1.weight' is F32 \[511, 64\], where \[512, 64\] fits the model"),
        ("medusa: too many heads", "medusa_num_heads must be a number from 1 to 16, not '99'"),
        ("mlp: no weights", "holds no safetensors"),
        ("mlp: another hidden size", r"tensor 'speculator.proj.0.weight' is F32 \[48, 63\], where \[48, 64\] fits the model"),
        ("mlp: no number", "inner_dim must be a number from 1 to 65536, not '48'"),
        ("mlp: no switch", "tie_weights must be true or false, not 'yes'"),
    ],
)
def test_damaged_files_are_named(damage: str, message: str, llama: Path, tmp_path: Path) -> None:
    """In one line, when the model is opened."""
    with pytest.raises(InvalidModel, match=message) as raised:
        open_cpu(llama, PLAN, speculator=str(broken(tmp_path / "heads", llama, damage)))
    assert "\n" not in str(raised.value) and str(raised.value).startswith("speculator: ")


def test_a_draft_model_needs_the_vocabulary(llama: Path, tmp_path: Path) -> None:
    """Vocabularies may differ in their padding only."""
    other = save_tiny("llama", tmp_path / "other", vocab_size=VOCAB - 200)
    with pytest.raises(InvalidModel, match="has a vocabulary of 312 tokens, the model one of 512"):
        open_cpu(llama, PLAN, speculator=str(other))
    padded = save_tiny("llama", tmp_path / "padded", vocab_size=VOCAB + 64)
    session, capacity = open_cpu(llama, PLAN, speculator=str(padded))
    run = Observed(session, capacity)
    run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])))
    assert len(run.rows[1].proposed) == 3 and max(run.rows[1].proposed) < VOCAB


@pytest.mark.parametrize("kind", ["heads", "draft model"])
def test_models_without_proposals_say_why(kind: str, llama: Path, tmp_path: Path) -> None:
    """A model that runs row by row runs no drafts, so nobody guesses for it."""
    mamba = save_tiny("mamba", tmp_path / "mamba")
    folder = medusa(tmp_path / "heads", mamba, 1)[0] if kind == "heads" else mamba
    session, _ = open_cpu(mamba, PLAN, speculator=str(folder))
    assert session.capabilities().proposals == 0 and Feature.SPECULATION not in session.capabilities().features
    assert said(session.capabilities())[0] == "none"


def test_without_drafts_there_is_no_second_cache(tmp_path: Path) -> None:
    """Where drafts would change tokens nobody guesses, and the model's cache has all the memory."""
    mixtral = save_tiny("mixtral", tmp_path / "mixtral")
    session, capacity = open_cpu(mixtral, PLAN, dtype="float32", speculator=str(mixtral))
    _, alone = open_cpu(mixtral, PLAN, dtype="float32")
    assert said(session.capabilities()) == ("none", "there are no drafts") and session.capabilities().proposals == 0
    assert [share for share in capacity.memory if share.name == "kv cache"] == [
        share for share in alone.memory if share.name == "kv cache"
    ]


def test_devices_without_proposals_say_why(llama: Path, tmp_path: Path) -> None:
    """One whose steps run ahead of the host, and one of compiled programs."""
    folder, _ = medusa(tmp_path / "heads", llama, 1)
    options = OpenOptions(str(llama), dtype="float32", speculator=str(folder))
    for implementation in (open_session(options, LateKit(LateQueue()), silent), open_static(options, StaticCpuKit(FLAT), silent)):
        session = Session(implementation, "device")
        assert session.capabilities().proposals == 0
        name, reason = said(session.capabilities())
        assert name == "none" and reason
        session.close()


def test_a_speculator_that_is_not_there(llama: Path, tmp_path: Path) -> None:
    """It is named."""
    shutil.rmtree(tmp_path)
    with pytest.raises(InvalidModel, match=r"config\.json: not found"):
        open_cpu(llama, PLAN, speculator=str(tmp_path))
