"""The errors that a client can get in place of an answer.

    RouterError                 error_type                        status  counted as
    ├── ValidationFailed        validation                        422     validation
    │   ├── StreamRuleBroken    validation                        422     validation
    │   └── PromptTooLong       validation                        422     validation
    ├── ModelOverloaded         overloaded                        429     overloaded
    ├── ForeignTextError        (those of which a backend or a template has written a part)
    │   ├── ShardFailed         generation                        424     generation
    │   │   ├── NotFinite       generation                        424     nan
    │   │   └── ShardLost       generation                        424     generation
    │   └── TemplateFailed      template_error                    422     template
    ├── TimedOut                timeout                           504     timeout
    ├── Incomplete              incomplete_generation             500     incomplete
    │   └── IncompleteStream    incomplete_generation_stream      500     incomplete
    ├── ToolFailed              tool_error                        422     validation
    ├── SuffixNotSupported      suffix not supported              422     validation
    ├── BatchSizeExceeded       batch size exceeded               422     validation
    ├── NoInstances             Input validation error            422     validation
    ├── LengthMismatch          length mismatch                   422     validation
    ├── NotUtf8                 utf8                              422     validation
    ├── ReadTooSlowly           read too slowly                   408     dropped
    ├── NotServing              unavailable                       503     unavailable
    │   └── ShuttingDown        shutting_down                     503     unavailable
    └── Unhealthy               healthcheck                       503     -

`BodyRejected` stands apart: a body that cannot be read is answered in plain text, as TGI does.

What is rendered here is TGI's form. `tgi_router.openai` has the form for the routes under /v1.
"""

from __future__ import annotations

import re
from math import ceil
from typing import ClassVar

from starlette.responses import PlainTextResponse, Response

from tgi_router.json_text import dumps


class RouterError(Exception):
    """Base of the tree. Its text is what the client reads."""

    status: ClassVar[int] = 422
    error_type: ClassVar[str]
    failure: ClassVar[str] = "validation"
    """The value of the label `err` of tgi_request_failure."""
    prefix: ClassVar[str] = ""
    retry_after_s: float | None = None
    """When another try may fare better; None if it would not."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(self.prefix + detail)


class ValidationFailed(RouterError):
    """A parameter breaks a rule of `tgi_router.validation`."""

    error_type = "validation"
    prefix = "Input validation error: "


class StreamRuleBroken(ValidationFailed):
    """A parameter that only streams refuse."""


class PromptTooLong(ValidationFailed):
    """Prompt and answer do not fit. OpenAI's clients know it by a code of its own."""


class ModelOverloaded(RouterError):
    """No permit or no room in the queue."""

    status = 429
    error_type = "overloaded"
    failure = "overloaded"
    prefix = "Model is overloaded"

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


_INNER = re.compile(r"0x[0-9a-fA-F]{6,}|(?:\w:)?(?:/[\w.@+~-]+){2,}")
"""Addresses and paths, which are the operator's business; logs have them."""


class ForeignTextError(RouterError):
    """Part of its text was written by a backend, or by a template from the model's files."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(_INNER.sub("…", detail))


class ShardFailed(ForeignTextError):
    """The device failed this request; another try would most likely fail the same way."""

    status = 424
    error_type = "generation"
    failure = "generation"
    prefix = "Request failed during generation: Server error: "


class NotFinite(ShardFailed):
    """The model computed no number for this request. Several of them in a short time are the device's fault."""

    failure = "nan"


class ShardLost(ShardFailed):
    """The shard went away with the request; it may be back for the next try."""

    retry_after_s = 1.0


class TimedOut(RouterError):
    """The request took longer than its client or the operator allowed."""

    status = 504
    error_type = "timeout"
    failure = "timeout"
    prefix = "Request timed out"


class Incomplete(RouterError):
    """The results ended before the answer was complete."""

    status = 500
    error_type = "incomplete_generation"
    failure = "incomplete"
    prefix = "Incomplete generation"


class IncompleteStream(Incomplete):
    """The same, as an event of a stream."""

    error_type = "incomplete_generation_stream"
    prefix = "Incomplete generation stream"


class TemplateFailed(ForeignTextError):
    """The messages cannot be rendered into a prompt."""

    error_type = "template_error"
    failure = "template"
    prefix = "Template error: "


class ToolFailed(RouterError):
    """Tools were asked for in a way that cannot be honoured."""

    error_type = "tool_error"
    prefix = "Tool error: "


class SuffixNotSupported(RouterError):
    """Completions with a suffix."""

    error_type = "suffix not supported"
    prefix = "Suffix is not supported and can be achieved by preprocessing the prompt."


class BatchSizeExceeded(RouterError):
    """Too many prompts in one call."""

    error_type = "batch size exceeded"
    prefix = "Number of prompts exceeds the maximum allowed batch size of "


class NoInstances(RouterError):
    """Vertex without an instance."""

    error_type = "Input validation error"
    prefix = "Input validation error"


class LengthMismatch(RouterError):
    """KServe with more inputs than outputs, or less."""

    error_type = "length mismatch"
    prefix = "Inputs and outputs length mismatch"


class NotUtf8(RouterError):
    """KServe with bytes that are no text."""

    error_type = "utf8"


class ReadTooSlowly(RouterError):
    """The client read too slowly for its buffer; sent as an event of the stream."""

    status = 408
    error_type = "read too slowly"
    failure = "dropped"
    prefix = "The client read too slowly"


class NotServing(RouterError):
    """Requests are not taken now: the model is loading, or the shard is being restarted."""

    status = 503
    error_type = "unavailable"
    failure = "unavailable"
    prefix = "The server does not take requests now: "
    retry_after_s = 1.0


class ShuttingDown(NotServing):
    """The server ends before the answer is complete; another one, or the next, can give it."""

    error_type = "shutting_down"
    prefix = "The server is shutting down"


class Unhealthy(RouterError):
    """The shard does not answer."""

    status = 503
    error_type = "healthcheck"
    prefix = "unhealthy"


class BodyRejected(Exception):
    """The body cannot be read: `status` is 400, 413, 415 or 422."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def retry_headers(error: RouterError) -> dict[str, str]:
    """For errors that pass by themselves: when to come back. OpenAI's clients read the milliseconds first."""
    seconds = error.retry_after_s
    return (
        {}
        if seconds is None
        else {"retry-after": str(max(ceil(seconds), 1)), "retry-after-ms": str(max(ceil(seconds * 1000), 1))}
    )


def error_json(error: RouterError) -> str:
    """TGI's error object."""
    return dumps({"error": str(error), "error_type": error.error_type})


def error_response(error: RouterError) -> Response:
    """The error object with its status, and `Retry-After` where clients should retry."""
    headers = retry_headers(error) if error.status in (429, 503) else None  # a 424 is final for TGI's clients
    return Response(error_json(error), status_code=error.status, media_type="application/json", headers=headers)


def body_response(error: BodyRejected) -> Response:
    """The plain text that TGI answers to a body it cannot read."""
    return PlainTextResponse(str(error), status_code=error.status)
