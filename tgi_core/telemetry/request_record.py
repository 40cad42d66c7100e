"""State of an HTTP request for its log line and trace: the fields of both, and the timestamps of each generation."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Timings:
    """Time breakdown of a complete generation, in seconds."""

    total: float
    validation: float
    queue: float
    inference: float
    per_token: float


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """Timestamps (`time.monotonic`) of a generation's stages; None for stages that it has not reached."""

    asked: float
    queued: float | None = None
    batched: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    input_length: int = 0
    generated_tokens: int = 0
    seed: int | None = None
    timings: Timings | None = None
    """Set once the generation is complete."""


@dataclass(slots=True)
class RequestRecord:
    """One request. Its handler fills in the fields; its creator logs and traces them once the answer is sent."""

    request_id: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Request parameters, without any client text."""
    generations: list[GenerationTimes] = field(default_factory=list)
    """One per requested generation; empty for requests that generate nothing."""
    failure: str | None = None
    """Why the request failed: one of `tgi_core.telemetry.catalog.FAILURES`."""
    check: str | None = None
    """The parameter whose check failed."""

    def fields(self) -> dict[str, object]:
        """Fields of TGI's spans, with durations in TGI's format. Times are summed over complete generations."""
        complete = [times.timings for times in self.generations if times.timings is not None]
        found: dict[str, object] = {"parameters": dict(self.parameters)}
        if complete:
            found["total_time"] = duration(sum(each.total for each in complete))
            found["validation_time"] = duration(sum(each.validation for each in complete))
            found["queue_time"] = duration(sum(each.queue for each in complete))
            found["inference_time"] = duration(sum(each.inference for each in complete))
            found["time_per_token"] = duration(sum(each.per_token for each in complete))
            found["input_length"] = sum(times.input_length for times in self.generations)
            found["generated_tokens"] = sum(times.generated_tokens for times in self.generations)
        found["seed"] = next((times.seed for times in self.generations), None)
        if self.failure is not None:
            found["err"] = self.failure
        if self.check is not None:
            found["check"] = self.check
        return found


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def begin(wanted_id: str | None) -> RequestRecord:
    """Create the record of the current task. It keeps the client's request id if that is valid."""
    record = RequestRecord(request_id(wanted_id))
    _current.set(record)
    return record


def request_id(wanted: str | None) -> str:
    """Return the client's request id if it is valid, else a new one."""
    return wanted if wanted is not None and _REQUEST_ID.fullmatch(wanted) else secrets.token_hex(16)


def current() -> RequestRecord | None:
    """Record of the current task; None in the scheduler, the shard and during startup."""
    return _current.get()


def duration(seconds: float) -> str:
    """Format a duration like TGI: 1.5s, 12.25ms, 3.1µs, 250ns."""
    nanoseconds = max(round(seconds * 1e9), 0)
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            whole, rest = divmod(nanoseconds, size)
            digits = str(rest).rjust(len(str(size)) - 1, "0").rstrip("0")
            return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
    return f"{nanoseconds}ns"
