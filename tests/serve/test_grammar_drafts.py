"""The tokens that a grammar forces are drafts: an answer takes fewer steps than it has tokens."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.serve.process import served

KEYS = ("first_long_property_name", "second_quite_long_property_name", "third_property_with_a_long_name")
SCHEMA = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 99} for key in KEYS},
    "required": list(KEYS),
    "additionalProperties": False,
}


def counters(metrics: str, name: str) -> dict[str, float]:
    """The values of a metric's series, by their labels."""
    return {labels: float(value) for labels, value in re.findall(rf"^{name}(\{{.*\}})? (\S+)$", metrics, re.MULTILINE)}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_keys_come_in_fewer_steps(backend: str) -> None:
    """A JSON object whose keys are much longer than its values, with the tokens that it has without speculation."""
    body = {
        "inputs": "As JSON:",
        "parameters": {"max_new_tokens": 200, "details": True, "grammar": {"type": "json", "value": SCHEMA}},
    }
    answers = []
    for drafts in ("0", "8"):
        flags = ("--backend", backend, *(("--dtype", "float32") if backend == "cpu" else ()))
        with served(*flags, "--speculate", drafts) as server, httpx.Client(base_url=server.url, timeout=120) as client:
            answers.append(client.post("/generate", json=body).json())
            metrics = client.get("/metrics").text
    assert answers[0] == answers[1]
    tokens = answers[1]["details"]["generated_tokens"]
    steps = sum(counters(metrics, "tgi_batch_inference_success").values())
    accepted = counters(metrics, "tgi_spec_decode_accepted_tokens")
    forced = sum(count for labels, count in accepted.items() if 'source="grammar"' in labels)
    assert steps < tokens * 2 / 3
    assert steps + sum(accepted.values()) >= tokens and forced > tokens / 3
