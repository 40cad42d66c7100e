"""Metrics of the scheduler's turns and the backend's verbs: the tgi_batch_* family, under TGI's names."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from prometheus_client import CollectorRegistry

from tgi_core.backend import CacheKind, Capacity, errors
from tgi_core.scheduler.events import Snapshot
from tgi_core.scheduler.row_drafts import DraftSource
from tgi_core.telemetry.catalog import SIZE_BUCKETS, VERBS, Instruments
from tgi_core.wire.types import Prefill, StepResult, StepVerb, Turn, TurnResult


class BatchMetrics:
    """Counters and histograms of one shard. `turn` is called on the event loop after each turn; the answer to the turn contains
    the durations of its verbs, wherever the shard runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._instruments = make = Instruments(registry)
        self._methods: dict[int, str] = {}
        """Method of each launched step that has not been read."""
        self._seconds: dict[str, float] = {}
        """Duration of each verb of the turn, in seconds; empty for a shard that does not report them."""
        self._count = make.counter("tgi_batch_inference_count")
        self._success = make.counter("tgi_batch_inference_success")
        self._failure = make.counter("tgi_batch_inference_failure")
        self._inference = make.histogram("tgi_batch_inference_duration")
        self._forward = make.histogram("tgi_batch_forward_duration")
        self._decode = make.histogram("tgi_batch_decode_duration")
        self._filter = make.histogram("tgi_batch_filter_duration")
        self._concat = make.counter("tgi_batch_concat")
        self._concat_seconds = make.histogram("tgi_batch_concat_duration")
        self._next_size = make.histogram("tgi_batch_next_size", SIZE_BUCKETS)
        self._tokens = make.counter("tgi_batch_generated_tokens")
        self._queried = make.counter("tgi_prefix_cache_query_tokens")
        self._hit = make.counter("tgi_prefix_cache_hit_tokens")
        self._drafts = make.counter("tgi_spec_decode_drafts")
        self._draft_tokens = make.counter("tgi_spec_decode_draft_tokens")
        self._accepted = make.counter("tgi_spec_decode_accepted_tokens")
        self._verbs = make.histogram("tgi_backend_verb_duration")
        self._verb_failure = make.counter("tgi_backend_verb_failure")

    def another(self) -> BatchMetrics:
        """Return the metrics of another shard, which counts into the same series."""
        other = copy(self)
        other._methods, other._seconds = {}, {}
        return other

    def watch(self, capacity: Capacity, snapshot: Callable[[], Snapshot]) -> None:
        """Export the utilization of the cache, once its capacity is known."""
        full = [group for group in capacity.groups if group.kind is CacheKind.FULL]
        block_size = (full or list(capacity.groups))[0].block_size

        def used() -> int:
            load = snapshot()
            return load.blocks_total - load.blocks_free

        gauge = self._instruments.gauge
        gauge("tgi_kv_blocks_used", used)
        gauge("tgi_kv_blocks_capacity", lambda: snapshot().blocks_total)
        gauge("tgi_batch_current_max_tokens", lambda: used() * block_size)
        gauge("tgi_batch_max_total_tokens", lambda: snapshot().blocks_total * block_size)
        gauge("vllm:kv_cache_usage_perc", lambda: max(used() / max(snapshot().blocks_total, 1), snapshot().window_usage))
        self._instruments.described(
            "vllm:cache_config_info",
            lambda: {"block_size": str(block_size), "num_gpu_blocks": str(snapshot().blocks_total)},
        )

    def turn(self, turn: Turn, result: TurnResult, seconds: float, delivery: float) -> None:
        """Count one turn of the scheduler; see `tgi_core.scheduler.loop.ObserveTurn`."""
        for call in result.verbs:
            self.verb(call.verb, call.ns / 1e9, call.error)
        if turn.launch is not None:
            self._launched(turn.launch, refused=result.refused is not None)
        if result.result is not None:
            self._came_back(result.result, seconds, delivery)
        self._seconds.clear()

    def drafts(self, source: DraftSource, drafted: int, accepted: int) -> None:
        """Count a row's drafts; see `tgi_core.scheduler.drafting.ObserveDrafts`."""
        self._drafts.labels(source.value).inc()
        self._draft_tokens.labels(source.value).inc(drafted)
        for place in range(accepted):
            self._accepted.labels(source.value, str(place)).inc()

    def verb(self, verb: str, seconds: float, error: str) -> None:
        """Count one call of a backend's hook."""
        if verb not in VERBS:  # a newer shard may report other verbs
            return
        self._seconds[verb] = self._seconds.get(verb, 0.0) + seconds
        self._verbs.labels(verb).observe(seconds)
        if error:
            known = isinstance(getattr(errors, error, None), type)  # text from a shard must not become a label
            self._verb_failure.labels(verb, error if known else "BackendError").inc()

    def _launched(self, verb: StepVerb, refused: bool) -> None:
        method = "prefill" if isinstance(verb, Prefill) else "decode"
        self._count.labels(method).inc()
        if refused:
            self._failure.labels(method).inc()
            return
        self._methods[verb.step] = method
        if isinstance(verb, Prefill):
            self._next_size.observe(len(verb.requests))
            self._queried.inc(sum(len(item.request.tokens) for item in verb.requests))
            self._hit.inc(sum(item.request.cached for item in verb.requests))
            if verb.cached is not None:
                self._joined("chunking", method)
        elif len(verb.batches) > 1:
            self._joined("wait_exceeded", method)

    def _joined(self, reason: str, method: str) -> None:
        """Count a concatenation and record its duration, which TGI always labels `decode`."""
        self._concat.labels(reason).inc()
        if method in self._seconds:
            self._concat_seconds.labels("decode").observe(self._seconds[method])

    def _came_back(self, step: StepResult, seconds: float, delivery: float) -> None:
        method = self._methods.pop(step.step, "decode")
        if step.fault is not None:
            for died in (method, *self._methods.values()):  # the failed step took all later steps with it
                self._failure.labels(died).inc()
            self._methods.clear()
            return
        self._success.labels(method).inc()
        self._tokens.inc(sum(len(generation.tokens) for generation in step.generations))
        self._inference.labels(method).observe(seconds)
        self._forward.labels(method).observe(step.forward_ns / 1e9)
        self._decode.labels(method).observe(step.sample_ns / 1e9)
        self._filter.labels(method).observe(delivery + self._seconds.get("filter", 0.0))
