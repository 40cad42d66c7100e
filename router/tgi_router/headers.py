"""Response headers of routes that generate, streams included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tgi_core.wire.types import ShardInfo
from tgi_router.inference import Result


class ComputeHeaders:
    """Creates the headers that report the cost of a response."""

    def __init__(self, info: ShardInfo, compute_type: str | None) -> None:
        self._type = compute_type or f"1-{info.device_kind.lower().replace(' ', '-')}"

    def stream(self, characters: int) -> dict[str, str]:
        """Return the headers of a stream: what is known before it starts. `characters` is the total length of the prompts."""
        return {"x-compute-type": self._type, "x-compute-characters": str(characters), "x-accel-buffering": "no"}

    def complete(self, results: Sequence[Result]) -> dict[str, str]:
        """Return the headers of a complete response: sums over its results."""
        timings = [result.timings for result in results]
        return {
            "x-compute-type": self._type,
            "x-compute-characters": str(sum(len(result.choice.prompt.text) for result in results)),
            "x-total-time": _milliseconds(each.total for each in timings),
            "x-validation-time": _milliseconds(each.validation for each in timings),
            "x-queue-time": _milliseconds(each.queue for each in timings),
            "x-inference-time": _milliseconds(each.inference for each in timings),
            "x-time-per-token": _milliseconds(each.per_token for each in timings),
            "x-prompt-tokens": str(sum(len(result.choice.request.input_ids) for result in results)),
            "x-generated-tokens": str(sum(result.text.generated_tokens for result in results)),
        }

    def complete_one(self, result: Result) -> dict[str, str]:
        """Return the headers of the response to one prompt, which also report the seconds as a decimal."""
        return self.complete_choices([result])

    def complete_choices(self, results: Sequence[Result]) -> dict[str, str]:
        """Return the headers of several choices for one prompt: its tokens count once, and the time is their common time."""
        longest = max(results, key=lambda result: result.timings.total)
        generated = sum(result.text.generated_tokens for result in results)
        seconds = f"{longest.timings.total:.9f}"
        return {**self.complete([longest]), "x-generated-tokens": str(generated), "x-compute-time": seconds}


def _milliseconds(seconds: Iterable[float]) -> str:
    return str(sum(int(each * 1000) for each in seconds))
