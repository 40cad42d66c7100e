"""`--rope-scaling` and `--rope-factor`: the model runs as transformers runs it with these RoPE parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.tiny_models import save_tiny
from tests.serve.process import run, served
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO, read_json
from tgi_core.rope_scaling import with_rope_scaling
from tgi_core.tokenizer import Tokenizer

TEXT = "Once upon a time there was a little dog. It had a red ball and it liked to"


def by_transformers(parameters: dict[str, Any]) -> list[int]:
    """Greedy tokens of the demo model, with RoPE parameters set in its config."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    config = model.config
    config.rope_parameters = {"rope_theta": config.rope_parameters["rope_theta"], **parameters}
    model = type(model)(config).eval()
    model.load_state_dict(AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).state_dict())
    ids = torch.tensor([Tokenizer.load(DEMO).encode(TEXT).ids])
    made = model.generate(ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids), eos_token_id=None)
    tokens: list[int] = made[0, ids.shape[1] :].tolist()
    return tokens


@pytest.mark.parametrize(
    ("flags", "parameters", "longer"),
    [
        (("--rope-scaling", "linear", "--rope-factor", "2"), {"rope_type": "linear", "factor": 2.0}, 2),
        (("--rope-factor", "1.5"), {"rope_type": "linear", "factor": 1.5}, 1.5),
        (("--rope-scaling", "dynamic", "--rope-factor", "4"), {"rope_type": "dynamic", "factor": 4.0}, 1),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_tokens_are_those_of_transformers(flags: tuple[str, ...], parameters: dict[str, Any], longer: float) -> None:
    """Greedy, on the demo model; a linear factor lengthens the context."""
    wanted = by_transformers(parameters)
    with served("--backend", "cpu", "--dtype", "float32", *flags) as server:
        asked = {"inputs": TEXT, "parameters": {"max_new_tokens": 24, "details": True}}
        tokens = httpx.post(f"{server.url}/generate", json=asked, timeout=60).json()["details"]["tokens"]
        info = httpx.get(f"{server.url}/info").json()
    ids = [token["id"] for token in tokens]
    assert ids == wanted[: len(ids)] and len(ids) > 4
    assert info["max_total_tokens"] == int(read_json(DEMO / "config.json")["max_position_embeddings"] * longer)


def test_the_variables(tmp_path: Path) -> None:
    """ROPE_SCALING and ROPE_FACTOR have an effect: a model without RoPE is refused in one line."""
    save_tiny("gpt2", tmp_path / "gpt2")
    (tmp_path / "gpt2" / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    where = ("--hostname", "127.0.0.1", "--port", "0", "--backend", "cpu")
    result = run("serve", str(tmp_path / "gpt2"), *where, extra={"ROPE_SCALING": "linear", "ROPE_FACTOR": "2"})
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"tgi: error: --rope-scaling, --rope-factor: {tmp_path}/gpt2/config.json names no rotary positions (RoPE) to scale; "
        "leave the flags out"
    )


def test_other_configs(tmp_path: Path) -> None:
    """As transformers 4 wrote it, and nested under text_config; the other files are the model's own. Kinds of layers are refused."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({"text_config": {"rope_theta": 10.0, "rope_scaling": None, "max_position_embeddings": 8}, "a": 1}))
    made = with_rope_scaling(tmp_path / "model", None, 3.0)
    text = {"rope_theta": 10.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}, "max_position_embeddings": 24}
    assert read_json(made / "config.json") == {"text_config": text, "a": 1}
    assert (made / "tokenizer.json").resolve() == tmp_path / "model" / "tokenizer.json"
    assert with_rope_scaling(tmp_path / "model", None, None) == tmp_path / "model"
    file.write_text(json.dumps({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}))
    with pytest.raises(StartupError, match="per kind of layer"):
        with_rope_scaling(tmp_path / "model", "linear", None)
