"""Catalog of all metrics with name, type, labels and meaning. The instruments and the table in docs/observability.md are generated
from it.

Metrics that TGI also has keep TGI's meaning. The `vllm:` ones are those that endpoint pickers of the Gateway API Inference Extension read
(its model server protocol), under the names they look for by default. Strings from clients are never label values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tgi_core.config import MAX_DRAFTS
from tgi_core.telemetry.histogram import FastHistogram
from tgi_core.telemetry.quantiles import Summary

DURATION_BUCKETS = tuple(0.00015 * 1.5**power for power in range(35))
"""Upper bounds in seconds, used by TGI for all durations."""

SIZE_BUCKETS = tuple(float(size) for size in range(1, 1025))
"""Upper bounds in requests, as in TGI."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `labels` maps each label to the values known in advance."""

    name: str
    kind: str
    text: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ours: bool = False
    """TGI has no metric of this name."""

    @property
    def by_replica(self) -> bool:
        """Whether only a server with several replicas has it."""
        return self.labels == REPLICA


METHOD = (("method", ("prefill", "decode")),)
FAILURES = ("overloaded", "validation", "template", "incomplete", "generation", "nan", "timeout", "unavailable", "dropped")
"""Reasons why a generation can fail."""
DRAFT_SOURCES = (("source", ("grammar", "prediction", "model", "ngram", "suffix")),)
REPLICA = (("replica", ()),)
PLACES = tuple(map(str, range(MAX_DRAFTS)))
"""Places among the drafts of a row."""
CONCAT_REASONS = ("backpressure", "wait_exceeded", "chunking")
VERBS = ("prefill", "decode", "rows", "filter")

METRICS = (
    Metric("tgi_request_count", "counter", "Generations requested; each ends as a success or a failure."),
    Metric("tgi_request_success", "counter", "Generations completed."),
    Metric("tgi_request_failure", "counter", "Generations that failed, by reason.", (("err", FAILURES),)),
    Metric("tgi_request_cancelled", "counter", "Generations whose client disconnected before the end.", ours=True),
    Metric("tgi_request_shed", "counter", "Generations refused because the server was full.", ours=True),
    Metric("tgi_request_adapter_count", "counter", "Generations admitted with an adapter.", (("adapter", ()),), ours=True),
    Metric("tgi_request_duration", "histogram", "Seconds from the arrival of a request to the end of its answer."),
    Metric("tgi_request_validation_duration", "histogram", "Seconds from the arrival of a request until it is queued."),
    Metric("tgi_request_queue_duration", "histogram", "Seconds in the queue."),
    Metric("tgi_request_inference_duration", "histogram", "Seconds from the first step to the end of the answer."),
    Metric("tgi_request_mean_time_per_token_duration", "histogram", "Seconds of inference per token, one value per generation."),
    Metric(
        "tgi_request_time_to_first_token_duration",
        "histogram",
        "Seconds from the arrival of a request to its first token.",
        ours=True,
    ),
    Metric("tgi_request_inter_token_duration", "histogram", "Seconds from each token of a generation to the next.", ours=True),
    Metric(
        "tgi_request_generated_tokens", "histogram", "Tokens generated per request, in 100 equal buckets up to max-total-tokens."
    ),
    Metric("tgi_request_input_length", "histogram", "Prompt tokens per request, in 100 equal buckets up to max-input-tokens."),
    Metric("tgi_request_max_new_tokens", "histogram", "Token limit per request, in 100 equal buckets up to max-total-tokens."),
    Metric("tgi_request_skipped_tokens", "summary", "Tokens beyond the first that one step generated for a request."),
    Metric("tgi_queue_size", "gauge", "Requests in the queue."),
    Metric("tgi_batch_current_size", "gauge", "Requests in the running batch."),
    Metric("tgi_batch_current_max_tokens", "gauge", "Token capacity of the KV blocks that the batch holds."),
    Metric("tgi_batch_max_total_tokens", "gauge", "Token capacity of the KV cache."),
    Metric("tgi_batch_next_size", "histogram", "Requests admitted in one step, in buckets of 1 up to 1024."),
    Metric("tgi_batch_inference_count", "counter", "Steps requested from the shard.", METHOD),
    Metric("tgi_batch_inference_success", "counter", "Steps completed.", METHOD),
    Metric("tgi_batch_inference_failure", "counter", "Steps refused or failed.", METHOD),
    Metric(
        "tgi_batch_inference_duration",
        "histogram",
        "Round-trip time to the shard for the turn that returned a step's results, in seconds.",
        METHOD,
    ),
    Metric("tgi_batch_forward_duration", "histogram", "Seconds of a step's forward pass, as reported by the shard.", METHOD),
    Metric("tgi_batch_decode_duration", "histogram", "Seconds of a step's sampling, as reported by the shard.", METHOD),
    Metric(
        "tgi_batch_filter_duration",
        "histogram",
        "Seconds spent delivering a step's tokens and removing rows from the batch.",
        METHOD,
    ),
    Metric(
        "tgi_batch_concat",
        "counter",
        "Batches merged: in one step with new requests (chunking), or after the new requests' own prefill (wait_exceeded).",
        (("reason", CONCAT_REASONS),),
    ),
    Metric("tgi_batch_concat_duration", "histogram", "Seconds of the call that merged batches.", (("method", ("decode",)),)),
    Metric("tgi_batch_generated_tokens", "counter", "Tokens received from the shard.", ours=True),
    Metric(
        "tgi_prefix_cache_query_tokens",
        "counter",
        "Tokens of requests looked up in the prefix cache at their first step.",
        ours=True,
    ),
    Metric("tgi_prefix_cache_hit_tokens", "counter", "Tokens found in the prefix cache.", ours=True),
    Metric(
        "tgi_spec_decode_drafts",
        "counter",
        "Rows that ran with drafts, counted once per step (vLLM's spec_decode_num_drafts).",
        DRAFT_SOURCES,
        ours=True,
    ),
    Metric("tgi_spec_decode_draft_tokens", "counter", "Draft tokens of these rows.", DRAFT_SOURCES, ours=True),
    Metric(
        "tgi_spec_decode_accepted_tokens",
        "counter",
        "Accepted draft tokens, by position among a row's drafts.",
        (*DRAFT_SOURCES, ("place", PLACES)),
        ours=True,
    ),
    Metric("tgi_kv_blocks_used", "gauge", "KV cache blocks in use by requests.", ours=True),
    Metric("tgi_kv_blocks_capacity", "gauge", "KV cache blocks in total.", ours=True),
    Metric("tgi_backend_verb_duration", "histogram", "Seconds spent in each backend hook.", (("verb", VERBS),), ours=True),
    Metric(
        "tgi_backend_verb_failure",
        "counter",
        "Errors raised by each backend hook.",
        (("verb", VERBS), ("error", ())),
        ours=True,
    ),
    Metric("tgi_replica_up", "gauge", "Whether a replica serves: 1 or 0.", REPLICA, ours=True),
    Metric("tgi_replica_queue_size", "gauge", "Requests in a replica's queue.", REPLICA, ours=True),
    Metric("tgi_replica_batch_current_size", "gauge", "Requests in a replica's batch.", REPLICA, ours=True),
    Metric("tgi_replica_kv_blocks_used", "gauge", "KV cache blocks of a replica in use by requests.", REPLICA, ours=True),
    Metric("tgi_replica_kv_blocks_capacity", "gauge", "KV cache blocks of a replica.", REPLICA, ours=True),
    Metric(
        "tgi_replica_prefix_cache_query_tokens", "counter", "Tokens looked up in a replica's prefix cache.", REPLICA, ours=True
    ),
    Metric("tgi_replica_prefix_cache_hit_tokens", "counter", "Tokens found in a replica's prefix cache.", REPLICA, ours=True),
    Metric("tgi_replica_placed_requests", "counter", "Requests placed on a replica.", REPLICA, ours=True),
    Metric("tgi_replica_moved_requests", "counter", "Requests that others took over from a replica.", REPLICA, ours=True),
    Metric("tgi_replica_losses", "counter", "Losses and planned replacements of a replica's shard.", REPLICA, ours=True),
    Metric("tgi_log_lines_dropped", "counter", "Log lines dropped because standard error was not read in time.", ours=True),
    Metric("vllm:num_requests_waiting", "gauge", "For endpoint pickers: requests in the queue.", ours=True),
    Metric("vllm:num_requests_running", "gauge", "For endpoint pickers: requests in the running batch.", ours=True),
    Metric("vllm:kv_cache_usage_perc", "gauge", "For endpoint pickers: used fraction of the KV cache, from 0 to 1.", ours=True),
    Metric(
        "vllm:cache_config_info",
        "gauge",
        "For endpoint pickers: tokens per KV cache block, and the number of blocks. The value is always 1.",
        (("block_size", ()), ("num_gpu_blocks", ())),
        ours=True,
    ),
    Metric(
        "vllm:lora_requests_info",
        "gauge",
        "For endpoint pickers: the loaded adapters; none ever waits. The value is the start time.",
        (("max_lora", ()), ("running_lora_adapters", ()), ("waiting_lora_adapters", ())),
        ours=True,
    ),
)

_BY_NAME = {metric.name: metric for metric in METRICS}


class _Counted:
    """Collector for a counter that is kept elsewhere."""

    def __init__(self, name: str, read: Callable[[], float]) -> None:
        self._name, self._read = name, read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current value."""
        yield CounterMetricFamily(self._name, _BY_NAME[self._name].text, value=float(self._read()))


class _ByReplica:
    """Collector for a gauge or a counter of each replica."""

    def __init__(self, name: str, read: Callable[[], Iterable[float]]) -> None:
        self._name, self._read = name, read

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the current values."""
        metric = _BY_NAME[self._name]
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(self._name, metric.text, labels=["replica"])
        for number, value in enumerate(self._read()):
            family.add_metric([str(number)], float(value))
        yield family


class _Described:
    """Collector for a gauge whose labels say more than its value."""

    def __init__(self, name: str, read: Callable[[], Mapping[str, str]], value: float) -> None:
        self._name, self._read, self._value = name, read, value

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one series with the current labels."""
        labels = self._read()
        family = GaugeMetricFamily(self._name, _BY_NAME[self._name].text, labels=list(labels))
        family.add_metric(list(labels.values()), self._value)
        yield family


class Instruments:
    """Creates metrics from the catalog in one registry. Series with known label values start at 0, so that rates include the first
    event."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str) -> Counter:
        """Create a counter."""
        metric = _BY_NAME[name]
        counter = Counter(name, metric.text, [label for label, _ in metric.labels], registry=self._registry)
        for values in product(*(values for _, values in metric.labels)) if metric.labels else ():
            counter.labels(*values)
        return counter

    def counted(self, name: str, read: Callable[[], float]) -> None:
        """Create a counter that is kept elsewhere and read at each scrape."""
        self._registry.register(_Counted(name, read))

    def by_replica(self, name: str, read: Callable[[], Iterable[float]]) -> None:
        """Create a gauge or a counter with a series for each replica, in the order of `read`, which is called at each scrape."""
        self._registry.register(_ByReplica(name, read))

    def described(self, name: str, read: Callable[[], Mapping[str, str]], value: float = 1.0) -> None:
        """Create a gauge with a constant value; `read`, which is called at each scrape, returns its labels."""
        self._registry.register(_Described(name, read, value))

    def histogram(self, name: str, buckets: tuple[float, ...] = DURATION_BUCKETS) -> FastHistogram:
        """Create a histogram."""
        metric = _BY_NAME[name]
        label, values = metric.labels[0] if metric.labels else ("", ())
        histogram = FastHistogram(name, metric.text, buckets, label, values)
        self._registry.register(histogram)
        return histogram

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Create a gauge that is read at each scrape."""
        Gauge(name, _BY_NAME[name].text, registry=self._registry).set_function(read)

    def summary(self, name: str) -> Summary:
        """Create a summary of small integers."""
        summary = Summary(name, _BY_NAME[name].text)
        self._registry.register(summary)
        return summary
