"""Metrics, as a scrape shows them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.router.serving import Served, read_until
from tests.telemetry.server import BLOCKS, Series, instance, scrape, value
from tgi_core.backend import CacheGroup, CacheKind, Capacity, OutOfMemory
from tgi_core.scheduler import Snapshot
from tgi_core.scheduler.batch_metrics import BatchMetrics
from tgi_core.telemetry.catalog import METRICS
from tgi_core.telemetry.metric_docs import FILE, document
from tgi_core.telemetry.quantiles import Summary
from tgi_core.wire.types import Decode, Prefill, StepResult, Turn, TurnResult

TGI = {
    "tgi_request_count": ("counter", ""),
    "tgi_request_success": ("counter", ""),
    "tgi_request_failure": ("counter", "err"),
    "tgi_request_duration": ("histogram", ""),
    "tgi_request_validation_duration": ("histogram", ""),
    "tgi_request_queue_duration": ("histogram", ""),
    "tgi_request_inference_duration": ("histogram", ""),
    "tgi_request_mean_time_per_token_duration": ("histogram", ""),
    "tgi_request_generated_tokens": ("histogram", ""),
    "tgi_request_input_length": ("histogram", ""),
    "tgi_request_max_new_tokens": ("histogram", ""),
    "tgi_request_skipped_tokens": ("summary", "quantile"),
    "tgi_batch_inference_count": ("counter", "method"),
    "tgi_batch_inference_success": ("counter", "method"),
    "tgi_batch_inference_failure": ("counter", "method"),
    "tgi_batch_inference_duration": ("histogram", "method"),
    "tgi_batch_forward_duration": ("histogram", "method"),
    "tgi_batch_decode_duration": ("histogram", "method"),
    "tgi_batch_filter_duration": ("histogram", "method"),
    "tgi_batch_concat_duration": ("histogram", "method"),
    "tgi_batch_concat": ("counter", "reason"),
    "tgi_batch_next_size": ("histogram", ""),
    "tgi_batch_current_size": ("gauge", ""),
    "tgi_batch_current_max_tokens": ("gauge", ""),
    "tgi_queue_size": ("gauge", ""),
    "tgi_batch_max_total_tokens": ("gauge", ""),
}
"""TGI's metrics: type, and the label besides a histogram's `le`."""


OF_REPLICAS = [metric.name.removeprefix("tgi_replica_") for metric in METRICS if metric.by_replica]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server with room for two requests."""
    with instance(max_concurrent_requests=2, max_total_tokens=64) as running:
        yield running


def delta(before: Series, after: Series) -> dict[str, float]:
    """What has changed, buckets and sums of seconds left out, with the labels' values behind the name."""
    changed = {}
    for (name, labels), now in after.items():
        measured = name.endswith(("_bucket", "_duration_sum")) or "quantile" in dict(labels)
        if not measured and now != before.get((name, labels), 0):
            changed[" ".join([name, *(text for _, text in sorted(labels))])] = now - before.get((name, labels), 0)
    return changed


def ask(served: Served, path: str = "/generate", **parameters: Any) -> Any:
    """A native call."""
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 5, "details": True, **parameters}}
    return served.client.post(path, json=body)


def ended(generations: int, tokens: int, prompts: int, steps: int) -> dict[str, float]:
    """What changes when so many generations with so many tokens are made in one prefill and the decodes after it."""
    counted = ("duration", "validation_duration", "queue_duration", "inference_duration", "mean_time_per_token_duration")
    per_generation = (*counted, "time_to_first_token_duration", "generated_tokens", "input_length", "max_new_tokens")
    per_step = ("inference_count {}", "inference_success {}", "{}_count {}")
    changed: dict[str, float] = {f"tgi_request_{name}_count": generations for name in per_generation}
    for method, count in (("prefill", 1), ("decode", steps - 1)):
        changed |= {f"tgi_batch_{name.format(method)}": count for name in per_step[:2]}
        families = ("inference", "forward", "decode", "filter")
        changed |= {f"tgi_batch_{family}_duration_count {method}": count for family in families}
        changed[f"tgi_backend_verb_duration_count {method}"] = count
    return changed | {
        "tgi_request_count": generations,
        "tgi_request_success": generations,
        "tgi_request_generated_tokens_sum": tokens,
        "tgi_request_max_new_tokens_sum": tokens,
        "tgi_request_input_length_sum": prompts,
        "tgi_request_inter_token_duration_count": tokens - generations,
        "tgi_request_skipped_tokens_count": tokens,
        "tgi_batch_generated_tokens": tokens,
        "tgi_batch_next_size_count": 1,
        "tgi_batch_next_size_sum": generations,
        "tgi_prefix_cache_query_tokens": prompts,
        "tgi_backend_verb_duration_count rows": steps,
    }


def idle(served: Served) -> Series:
    """A scrape once all rows that ended have been dropped from the shard's batch."""
    while True:
        series = scrape(served)
        filters = value(series, "tgi_backend_verb_duration_count", verb="filter")
        if filters == value(series, "tgi_batch_next_size_count"):
            return series


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_a_generation(served: Served, path: str) -> None:
    """One generation of five tokens changes every counter by what it must, and nothing else."""
    before = idle(served)
    assert '"finish_reason":"length"' in ask(served, path).text
    prompts = len(served.client.post("/tokenize", json={"inputs": "Once upon a time"}).json())
    changed = delta(before, idle(served))
    assert changed == ended(1, 5, prompts, steps=5) | {"tgi_backend_verb_duration_count filter": 1}


def test_two_generations(served: Served) -> None:
    """A call with two prompts is two generations in one batch."""
    before = idle(served)
    answer = served.client.post("/v1/completions", json={"prompt": ["a", "b c"], "max_tokens": 4, "temperature": 0}).json()
    assert answer["usage"]["completion_tokens"] == 8
    changed = delta(before, idle(served))
    prompts = answer["usage"]["prompt_tokens"]
    assert changed == ended(2, 8, prompts, steps=4) | {"tgi_backend_verb_duration_count filter": 1}


@pytest.mark.parametrize(
    ("path", "body", "changes"),
    [
        ("/generate", {"inputs": "a", "parameters": {"temperature": 0}}, {"count": 1, "failure validation": 1}),
        ("/generate_stream", {"inputs": ""}, {"count": 1, "failure validation": 1}),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}, {"count": 3, "failure overloaded": 3, "shed": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "?", "content": "a"}]}, {"count": 1, "failure template": 1}),
        ("/generate", {"prompt": "a"}, {}),
        ("/nowhere", {}, {}),
    ],
)
def test_refusals(served: Served, path: str, body: Any, changes: dict[str, int]) -> None:
    """A refused call counts as asked for and as failed by its kind, and never reaches the batch; one that cannot be read does not count."""
    before = scrape(served)
    assert served.client.post(path, json=body).status_code in (200, 404, 422, 429)
    assert delta(before, scrape(served)) == {f"tgi_request_{name}": count for name, count in changes.items()}


def test_leaving(served: Served) -> None:
    """A client that leaves is counted as cancelled and dropped, and its blocks are free again."""
    before = scrape(served)
    with instance(max_total_tokens=1000) as other:
        with other.send("/generate_stream", '{"inputs":"a","parameters":{"max_new_tokens":900}}') as connection:
            read_until(connection, b"data: ")
            held = scrape(other)
        while not value(after := scrape(other), "tgi_request_cancelled"):
            pass
    assert value(held, "tgi_batch_current_size") == 1
    assert value(held, "tgi_kv_blocks_used") * 16 == value(held, "tgi_batch_current_max_tokens") > 0
    assert value(after, "tgi_request_failure", err="dropped") == value(after, "tgi_request_count") == 1
    assert value(after, "tgi_kv_blocks_used") == value(after, "tgi_batch_current_size") == 0
    assert delta(before, scrape(served)) == {}


def test_faults() -> None:
    """A step that fails counts as a failure of its kind and of the hook, as do the steps behind it; the request goes on."""
    with instance(session={"faults": {2: OutOfMemory("scripted")}}) as served:
        assert ask(served).status_code == 200
        series = scrape(served)
    method = ("prefill", "decode")
    failed = {name: value(series, "tgi_batch_inference_failure", method=name) for name in method}
    made = {name: value(series, "tgi_batch_inference_success", method=name) for name in method}
    asked = {name: value(series, "tgi_batch_inference_count", method=name) for name in method}
    assert failed["decode"] >= 1
    assert {name: failed[name] + made[name] for name in method} == asked
    assert value(series, "tgi_backend_verb_failure", verb="rows", error="OutOfMemory") == 1
    assert value(series, "tgi_request_success") == 1


def test_names_types_labels_and_buckets(served: Served) -> None:
    """Everything of TGI's is there with its type and label; durations have its 35 buckets, batches 1024, and lengths 100 up to the
    limits. All of it is in the catalogue, and nothing else."""
    text = served.client.get("/metrics").text
    types = dict(re.findall(r"^# TYPE ([\w:]+) (\w+)$", text, re.M))
    assert types == {metric.name: metric.kind for metric in METRICS if not metric.by_replica}
    series = scrape(served)
    for name, (kind, label) in TGI.items():
        assert types[name] == kind
        labels = {key for (found, pairs) in series for key, _ in pairs if re.fullmatch(f"{name}(_bucket)?", found)} - {"le"}
        assert labels == ({label} if label else set()), name
    durations = [0.00015 * 1.5**power for power in range(35)]
    assert bounds(series, "tgi_request_duration") == pytest.approx(durations)
    assert bounds(series, "tgi_batch_forward_duration") == pytest.approx(durations)
    assert bounds(series, "tgi_batch_next_size") == list(range(1, 1025))
    assert bounds(series, "tgi_request_generated_tokens") == pytest.approx([0.64 * step for step in range(1, 101)])
    assert bounds(series, "tgi_request_input_length") == pytest.approx([0.63 * step for step in range(1, 101)])


def bounds(series: Series, name: str) -> list[float]:
    """The finite upper bounds of a histogram."""
    found = {float(dict(labels)["le"]) for sample, labels in series if sample == f"{name}_bucket"}
    return sorted(found - {float("inf")})


def test_form(served: Served) -> None:
    """What Prometheus' own checker asks for: help and type before the samples, once per family; no series twice; histograms that grow
    up to their count."""
    lines = served.client.get("/metrics").text.splitlines()
    heads = [line.split()[1:3] for line in lines if line.startswith("#")]
    assert heads == [[kind, metric] for metric in dict.fromkeys(name for _, name in heads) for kind in ("HELP", "TYPE")]
    samples = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    lora = [sample for sample in samples if sample.startswith("vllm:lora_requests_info{")]  # one label may be empty
    assert all(re.fullmatch(r'(tgi_|vllm:)[a-z_]+(\{(\w+="[\w.+-]+",?)+\})?', sample) for sample in samples if sample not in lora)
    assert not any(re.search("_(total|created)[{ ]", f"{sample} ") for sample in samples)
    counts = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("tgi_request_duration_bucket")]
    assert counts == sorted(counts)
    assert f"tgi_request_duration_count {counts[-1]:g}" in lines


def test_cardinality(served: Served) -> None:
    """Nothing that a client can choose becomes a series."""
    known = set(scrape(served))
    for odd in ("nobody", "x" * 64, 'quo"te', "7"):
        body = {"model": odd, "user": odd, "prompt": "a", "max_tokens": 1, "stop": [odd]}
        served.client.post("/v1/completions", json=body, headers={"x-request-id": odd, "authorization": f"Bearer {odd}"})
        served.client.post(f"/{odd}", json={"inputs": odd, "parameters": {"adapter_id": odd, "max_new_tokens": 1}})
        ask(served, adapter_id=odd, max_new_tokens=1)
        served.client.request(odd if odd.isalpha() else "PUT", "/generate")
    assert set(scrape(served)) == known


def test_capacity(served: Served) -> None:
    """The cache is told in blocks and in tokens."""
    series = scrape(served)
    assert value(series, "tgi_kv_blocks_capacity") == BLOCKS
    assert value(series, "tgi_batch_max_total_tokens") == BLOCKS * 16


def test_joined_batches() -> None:
    """New requests that join the running ones in one step count as chunking; batches that are joined afterwards as wait_exceeded. Both
    are timed as TGI labels them, by the verb in which it happened."""
    registry = CollectorRegistry()
    batches = BatchMetrics(registry)
    batches.watch(Capacity((CacheGroup(CacheKind.FULL, 16, 8),), 8, 64, 64, 8), lambda: Snapshot(0, 0, 3, 8))

    def joined(launch: Prefill | Decode) -> None:
        batches.verb("prefill" if isinstance(launch, Prefill) else "decode", 0.25, "")
        batches.turn(Turn(launch=launch), TurnResult(result=StepResult(launch.step)), 1.0, 0.0)

    joined(Prefill(1, (), cached=None))
    joined(Prefill(2, (), cached=1))
    joined(Decode(3, (2,)))
    joined(Decode(4, (3, 2)))
    read = registry.get_sample_value
    assert read("tgi_batch_concat_total", {"reason": "chunking"}) == 1
    assert read("tgi_batch_concat_total", {"reason": "wait_exceeded"}) == 1
    assert read("tgi_batch_concat_duration_count", {"method": "decode"}) == 2
    assert read("tgi_batch_concat_duration_sum", {"method": "decode"}) == 0.5
    assert read("tgi_batch_current_max_tokens") == 5 * 16


def test_replicas() -> None:
    """With several shards, the usual series are their sums, and each replica has series of its own."""
    with instance(replicas=2) as several:
        before = scrape(several)
        assert {metric.name for metric in METRICS} == set(
            re.findall(r"^# TYPE ([\w:]+)", several.client.get("/metrics").text, re.M)
        )
        for _ in range(2):
            ask(several, max_new_tokens=5)
        after = scrape(several)
    of = [{name: value(after, f"tgi_replica_{name}", replica=number) for name in OF_REPLICAS} for number in "01"]
    assert [each["up"] for each in of] == [1, 1] and sum(each["placed_requests"] for each in of) == 2
    assert sum(each["kv_blocks_capacity"] for each in of) == value(after, "tgi_kv_blocks_capacity") == 2 * BLOCKS
    queried = value(after, "tgi_prefix_cache_query_tokens") - value(before, "tgi_prefix_cache_query_tokens")
    assert sum(each["prefix_cache_query_tokens"] for each in of) == queried > 0
    assert value(after, "tgi_batch_generated_tokens") == 10


def test_quantiles() -> None:
    """Quantiles are exact, and 0 before anything was observed."""
    summary = Summary("name", "text")
    registry = CollectorRegistry()
    registry.register(summary)
    assert registry.get_sample_value("name", {"quantile": "0.5"}) == 0
    for observed in [0] * 50 + [1] * 40 + [2] * 9 + [5]:
        summary.observe(observed)
    found = {q: registry.get_sample_value("name", {"quantile": q}) for q in ("0", "0.5", "0.9", "0.95", "0.99", "0.999", "1")}
    assert found == {"0": 0, "0.5": 0, "0.9": 1, "0.95": 2, "0.99": 2, "0.999": 5, "1": 5}
    assert (registry.get_sample_value("name_sum"), registry.get_sample_value("name_count")) == (63, 100)


def test_documentation() -> None:
    """docs/observability.md has today's table; `python -m tgi_core.telemetry.metric_docs` writes it."""
    written = FILE.read_text(encoding="utf-8")
    assert document(written) == written
    assert all(f"`{metric.name}`" in written for metric in METRICS)
    assert subprocess.run([sys.executable, "-m", "tgi_core.telemetry.metric_docs", "--check"], check=False).returncode == 0
