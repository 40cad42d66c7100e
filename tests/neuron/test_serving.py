"""What TGI's Neuron backend refused or left empty, over HTTP: `tgi serve --backend neuron`, over the stand-in."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from tests.neuron.standin import LEGACY, environment
from tests.serve.process import environment as variables
from tests.serve.process import served


def test_details_seeds_and_grammars(tmp_path: Path) -> None:
    """Logprobs and top tokens are there, a seed repeats its tokens, and a grammar holds."""
    arguments = ("--backend", "neuron", "--max-batch-size", "2", "--max-total-tokens", "128", "--dtype", "float32")
    extra = variables(environment(tmp_path, LEGACY))
    with served(*arguments, extra=extra, cwd=tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as client:

        def generate(**parameters: object) -> dict[str, object]:
            body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 6, **parameters}}
            done = client.post("/generate", json=body)
            assert done.status_code == 200, done.text
            found: dict[str, object] = done.json()
            return found

        plain = generate(details=True, top_n_tokens=3)
        assert "Paris" in str(plain["generated_text"])
        details = plain["details"]
        assert isinstance(details, dict)
        assert all(token["logprob"] < 0 for token in details["tokens"]) and {len(top) for top in details["top_tokens"]} == {3}
        drawn = [generate(do_sample=True, temperature=3.0, seed=seed)["generated_text"] for seed in (7, 7, 8)]
        assert drawn[0] == drawn[1] != drawn[2]
        number = generate(grammar={"type": "regex", "value": "[0-9]{4}"})["generated_text"]
        assert re.fullmatch("[0-9]{4}", str(number))
