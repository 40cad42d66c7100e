"""EAGLE-3 guesses what its formula says, keeps its cache right, and changes no token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.eagle3_files import counting_eagle3, counting_model, eagle3
from tests.engine.observing import PLAN, Observed, counted, said, turns
from tests.engine.tiny_models import PROMPTS, expected_tokens, open_cpu, save_tiny
from tgi_core.backend import Grant, InvalidModel
from tgi_core.engine.speculators.files import MOST


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the fused step."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("speculators", [False, True], ids=["SpecForge", "speculators"])
def test_it_guesses_what_its_formula_says(speculators: bool, llama: Path, tmp_path: Path) -> None:
    """Over a prompt in chunks, beside another row, and whatever drafts were accepted; the tokens are those of the model alone."""
    folder, guess = eagle3(tmp_path / "head", llama, speculators=speculators)
    session, capacity = open_cpu(llama, replace(PLAN, block_size=16), speculator=str(folder))
    assert said(session.capabilities())[0] == "eagle3" and session.capabilities().proposals == MOST
    run = Observed(session, capacity)

    def check() -> None:
        for id, row in run.rows.items():
            assert row.proposed == tuple(guess([*PROMPTS[id - 1], *run.tokens[id]], 3))

    turns(run, check)
    for id, tokens in zip((1, 2), expected_tokens(llama), strict=False):
        assert run.tokens[id] == tokens[: len(run.tokens[id])]


def test_yarn_scales_its_attention(llama: Path, tmp_path: Path) -> None:
    """What a head's config multiplies queries and keys by is in what it guesses."""
    folder, guess = eagle3(tmp_path / "head", llama, speculators=False, yarn=0.05)
    session, capacity = open_cpu(llama, PLAN, speculator=str(folder))
    run = Observed(session, capacity)
    prompt = (*PROMPTS[0], *PROMPTS[1], *PROMPTS[2])
    run.step(run.request(1, prompt, len(prompt)))
    assert run.rows[1].proposed == tuple(guess([*prompt, *run.tokens[1]], 3))


def test_a_prefix_is_shared_with_its_cache(llama: Path, tmp_path: Path) -> None:
    """A row that goes on behind a block of another with the same tokens finds its keys and values there."""
    folder, guess = eagle3(tmp_path / "head", llama, speculators=False)
    session, capacity = open_cpu(llama, replace(PLAN, block_size=16), speculator=str(folder))
    prompt = (*PROMPTS[0], *PROMPTS[1], *PROMPTS[2])
    run = Observed(session, capacity)
    first = run.request(1, prompt, len(prompt))
    run.step(first)
    shared = replace(run.request(2, prompt, len(prompt) - 16), cached=16)
    run.step(replace(shared, blocks=((first.blocks[0][0], *shared.blocks[0][1:]),)), grants=(Grant(1, 0),))
    assert run.rows[2].proposed == tuple(guess([*prompt, *run.tokens[2]], 3))


def test_a_right_head_is_right_for_many_tokens(tmp_path: Path) -> None:
    """One that knows what the model says: each draft is accepted, across blocks and beyond the positions of its own config."""
    base, head = counting_model(tmp_path / "model"), counting_eagle3(tmp_path / "head")
    session, capacity = open_cpu(base, replace(PLAN, block_size=16, draft=5), speculator=str(head))
    assert counted(Observed(session, capacity)) == [(22 + 2 * place) % 64 for place in range(13)]


def test_in_bfloat16_with_an_8_bit_cache(tmp_path: Path) -> None:
    """It follows the model's dtype and that of its cache."""
    base, head = counting_model(tmp_path / "model"), counting_eagle3(tmp_path / "head")
    session, capacity = open_cpu(base, PLAN, speculator=str(head), dtype="bfloat16", cache_dtype="int8")
    run = Observed(session, capacity)
    run.step(run.request(1, (7, 30, 4, 20), 4))
    assert run.tokens[1] == [22] and run.rows[1].proposed == (24, 26, 28)


def test_layers_by_sglang_count_from_their_ends(llama: Path, tmp_path: Path) -> None:
    """The same layers, which its config names by the numbers of those before."""
    folder, guess = eagle3(tmp_path / "head", llama, speculators=True)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"] = {
        "eagle_aux_hidden_state_layer_ids": [-1 + id for id in config.pop("eagle_aux_hidden_state_layer_ids")]
    }
    (folder / "config.json").write_text(json.dumps(config))
    session, capacity = open_cpu(llama, PLAN, speculator=str(folder))
    run = Observed(session, capacity)
    run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])))
    assert run.rows[1].proposed == tuple(guess([*PROMPTS[0], *run.tokens[1]], 3))


def test_its_memory_is_told(llama: Path, tmp_path: Path) -> None:
    """Weights by themselves, and its cache in that of the model."""
    folder, _ = eagle3(tmp_path / "head", llama, speculators=True)
    _, alone = open_cpu(llama, PLAN)
    _, capacity = open_cpu(llama, PLAN, speculator=str(folder))
    memory, before = ({item.name: item.num_bytes for item in each.memory} for each in (capacity, alone))
    matrices = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values() if tensor.ndim == 2)
    assert memory["speculator"] == pytest.approx(matrices, rel=0.3)
    assert memory["kv cache"] > before["kv cache"]


def broken(folder: Path, llama: Path, damage: str) -> Path:
    """A head with one thing wrong."""
    made, _ = eagle3(folder, llama, speculators=damage != "SpecForge without embeddings")
    config, file = json.loads((made / "config.json").read_text()), made / "model.safetensors"
    tensors = load_file(file)
    match damage:
        case "no weights":
            file.unlink()
            return made
        case "truncated":
            file.write_bytes(file.read_bytes()[:-4])
            return made
        case "no tensor":
            del tensors["layers.0.mlp.up_proj.weight"]
        case "another model":
            tensors["fc.weight"] = tensors["fc.weight"][:, 3:].contiguous()
        case "no embeddings":
            del tensors["embed_tokens.weight"]
        case "an unknown tensor":
            tensors["layers.0.self_attn.q_norm.weight"] = torch.ones(32)
        case "tokens beyond the vocabulary":
            tensors["d2t"] = tensors["d2t"] + 400
        case "tokens as floats":
            tensors["d2t"] = tensors["d2t"].float()
        case "two layers":
            config["transformer_layer_config"]["num_hidden_layers"] = 2
        case "no layer config":
            config["transformer_layer_config"] = "llama"
        case "no size":
            del config["transformer_layer_config"]["hidden_size"]
        case "no such layer":
            config["eagle_aux_hidden_state_layer_ids"] = [2, 3, 4]
        case "two layer ids":
            config["eagle_aux_hidden_state_layer_ids"] = [2, 3]
        case "too large a vocabulary":
            config["draft_vocab_size"] = 513
    (made / "config.json").write_text(json.dumps(config))
    save_file(tensors, file)
    return made


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no weights", "holds no safetensors"),
        ("truncated", "truncated"),
        ("no tensor", "lacks tensor 'layers.0.mlp.up_proj.weight'"),
        ("another model", r"tensor 'fc.weight' is F32 \[48, 189\], where \[48, 192\] fits the model"),
        ("no embeddings", "lacks tensor 'embed_tokens.weight'"),
        ("an unknown tensor", "holds tensor 'layers.0.self_attn.q_norm.weight', which EAGLE-3 does not have"),
        ("tokens beyond the vocabulary", "tensor 'd2t' names tokens that the model's 512 do not include"),
        ("tokens as floats", r"tensor 'd2t' is F32 \[200\], where I64 \[200\] fits the model"),
        ("two layers", "has 2 layers; EAGLE-3 runs with 1"),
        ("no layer config", "transformer_layer_config is not an object"),
        ("no size", "its config does not say hidden_size"),
        ("no such layer", r"eagle_aux_hidden_state_layer_ids must be 3 layers of the model's 4, not '\[2, 3, 4\]'"),
        ("two layer ids", r"eagle_aux_hidden_state_layer_ids must be 3 layers of the model's 4, not '\[2, 3\]'"),
        ("too large a vocabulary", "draft_vocab_size must be a number from 1 to 512, not '513'"),
    ],
)
def test_damaged_files_are_named(damage: str, message: str, llama: Path, tmp_path: Path) -> None:
    """In one line, when the model is opened."""
    with pytest.raises(InvalidModel, match=message) as raised:
        open_cpu(llama, PLAN, speculator=str(broken(tmp_path / "head", llama, damage)))
    assert "\n" not in str(raised.value) and str(raised.value).startswith("speculator: ")


def test_modules_hand_out_no_states(tmp_path: Path) -> None:
    """A model that does not run from a table is served without, and says why."""
    gpt2 = save_tiny("gpt2", tmp_path / "gpt2", n_head=2)
    folder, _ = eagle3(tmp_path / "head", gpt2, speculators=True)
    session, capacity = open_cpu(gpt2, PLAN, speculator=str(folder))
    name, reason = said(session.capabilities())
    assert name == "none" and "step from a table" in reason
    run = Observed(session, capacity)
    run.step(run.request(1, PROMPTS[0], len(PROMPTS[0])))
    assert run.rows[1].proposed == ()
