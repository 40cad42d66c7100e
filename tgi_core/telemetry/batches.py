"""What the scheduler's turns and the backend's verbs look like from outside: the tgi_batch_* family, under TGI's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from tgi_core.client.types import Clear, Filter, Prefill, Turn, TurnResult

DURATION_BUCKETS = tuple(0.00015 * 1.5**power for power in range(35))
"""Upper bounds in seconds: TGI's own for everything that lasts."""

_SIZE_BUCKETS = tuple(float(2**power) for power in range(11))


class BatchMetrics:
    """Counters and histograms of one shard. `turn` is called on the event loop, `verb` in the shard's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._methods: dict[int, str] = {}
        """Steps that are launched and not yet read."""
        self._count = self._counter("tgi_batch_inference_count", "Steps launched.", "method")
        self._success = self._counter("tgi_batch_inference_success", "Steps that came back.", "method")
        self._failure = self._counter("tgi_batch_inference_failure", "Steps refused or failed.", "method")
        self._inference = self._histogram("tgi_batch_inference_duration", "Seconds from a step's turn to its end.")
        self._forward = self._histogram("tgi_batch_forward_duration", "Seconds in the model, as the shard reports.")
        self._decode = self._histogram("tgi_batch_decode_duration", "Seconds choosing tokens, as the shard reports.")
        self._filtered = self._histogram("tgi_batch_filter_duration", "Seconds of turns that only drop rows.")
        self._concat = self._counter("tgi_batch_concat", "Batches that new requests joined.", "reason")
        self._next_size = Histogram("tgi_batch_next_size", "Requests admitted at once.", buckets=_SIZE_BUCKETS, registry=registry)
        self._verbs = self._histogram("tgi_backend_verb_duration", "Seconds in each hook of the backend.", "verb")
        self._verb_failure = Counter(
            "tgi_backend_verb_failure", "Errors from each hook of the backend.", ["verb", "error"], registry=registry
        )

    def turn(self, turn: Turn, result: TurnResult, seconds: float) -> None:
        """Count one turn of the scheduler; see `tgi_core.scheduler.loop.ObserveTurn`."""
        if turn.launch is not None:
            self._launched(turn, result)
        elif turn.read is None and any(isinstance(verb, Filter | Clear) for verb in turn.bookkeeping):
            self._filtered.labels("decode").observe(seconds)
        done = result.result
        if done is None:
            return
        method = self._methods.pop(done.step, "decode")
        if done.fault is not None:
            self._failure.labels(method).inc()
            return
        self._success.labels(method).inc()
        self._inference.labels(method).observe(seconds)
        self._forward.labels(method).observe(done.forward_ns / 1e9)
        self._decode.labels(method).observe(done.sample_ns / 1e9)

    def verb(self, verb: str, seconds: float, error: str) -> None:
        """Count one call of a backend's hook; see `tgi_core.backend.wrappers.Observe`."""
        self._verbs.labels(verb).observe(seconds)
        if error:
            self._verb_failure.labels(verb, error).inc()

    def _launched(self, turn: Turn, result: TurnResult) -> None:
        verb = turn.launch
        if verb is None:
            return
        method = "prefill" if isinstance(verb, Prefill) else "decode"
        self._count.labels(method).inc()
        if result.refused is not None:
            self._failure.labels(method).inc()
            return
        self._methods[verb.step] = method
        if isinstance(verb, Prefill):
            self._next_size.observe(len(verb.requests))
            if verb.cached is not None:
                self._concat.labels("chunking").inc()

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, [label], registry=self._registry)

    def _histogram(self, name: str, text: str, label: str = "method") -> Histogram:
        return Histogram(name, text, [label], buckets=DURATION_BUCKETS, registry=self._registry)
