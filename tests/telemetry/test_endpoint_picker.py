"""What an endpoint picker of the Gateway API Inference Extension reads and sends: its model server protocol."""

from __future__ import annotations

import json
import time

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.router.serving import Served, read_until
from tests.telemetry.server import BLOCKS, instance, scrape, value

HEADERS = {
    "x-gateway-inference-objective": "interactive",
    "x-gateway-inference-fairness-id": "team-7",
    "x-gateway-destination-endpoint": "10.0.0.7:3000",
    "x-gateway-destination-endpoint-subset": "10.0.0.7:3000,10.0.0.8:3000",
    "x-gateway-model-name": "nobody",
    "x-gateway-model-name-rewrite": "nobody",
    "x-llm-d-inference-objective": "interactive",
    "x-llm-d-slo-ttft-ms": "200",
    "x-envoy-expected-rq-timeout-ms": "1",
    "x-envoy-attempt-count": "3",
    "x-forwarded-for": "10.0.0.1, 10.0.0.2",
}
"""Headers of gateways and pickers, with values that would do harm if the server took them for its own."""


def families(served: Served) -> dict[str, Metric]:
    """The protocol's metrics, as a picker parses them."""
    found = text_string_to_metric_families(served.client.get("/metrics").text)
    return {family.name: family for family in found if family.name.startswith("vllm:")}


def test_an_idle_server() -> None:
    """Gauges at zero, the cache's shape, and no adapters."""
    with instance() as served:
        found = families(served)
    assert {name: family.type for name, family in found.items()} == dict.fromkeys(found, "gauge")
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert found[f"vllm:{name}"].samples[0].value == 0
    (config,) = found["vllm:cache_config_info"].samples
    assert config.labels == {"block_size": "16", "num_gpu_blocks": str(BLOCKS)} and config.value == 1
    (lora,) = found["vllm:lora_requests_info"].samples
    assert lora.labels == {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}


def test_a_busy_server() -> None:
    """Waiting and running requests, and the used part of the cache, are those of the server's own metrics."""
    with (
        instance(max_total_tokens=1000) as served,
        served.send("/generate_stream", '{"inputs":"a","parameters":{"max_new_tokens":900}}') as connection,
    ):
        read_until(connection, b"data: ")
        series = scrape(served)
    assert value(series, "vllm:num_requests_running") == value(series, "tgi_batch_current_size") == 1
    assert value(series, "vllm:num_requests_waiting") == value(series, "tgi_queue_size") == 0
    assert value(series, "vllm:kv_cache_usage_perc") == value(series, "tgi_kv_blocks_used") / BLOCKS > 0


def test_adapters() -> None:
    """All adapters are loaded, none waits, and the value is a time, by which a picker finds the newest series."""
    before = time.time()
    with instance(session={"adapters": ("poet", "judge")}) as served:
        (told,) = families(served)["vllm:lora_requests_info"].samples
    assert told.labels == {"max_lora": "2", "running_lora_adapters": "poet,judge", "waiting_lora_adapters": ""}
    assert before <= told.value <= time.time()


@pytest.mark.parametrize("stream", [False, True])
def test_headers_do_no_harm(stream: bool) -> None:
    """Headers of gateways and pickers change neither status nor answer, and none comes back."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 3, "stream": stream}
    with instance() as served:
        plain, routed = (served.client.post("/v1/chat/completions", json=body, headers=headers) for headers in ({}, HEADERS))
    assert plain.status_code == routed.status_code == 200
    assert texts(routed.text) == texts(plain.text) != []
    assert not set(HEADERS) & set(routed.headers)


def texts(answer: str) -> list[object]:
    """What was generated, without ids and times."""
    lines = [line.removeprefix("data:") for line in answer.splitlines() if line.strip() and "[DONE]" not in line]
    return [choice.get("delta", choice.get("message")) for line in lines for choice in json.loads(line)["choices"]]
