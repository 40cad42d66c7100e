"""The errors that a client can receive instead of a result: status, error code and `Retry-After` of each.

    RouterError                 error_type                        status  counted as
    ├── ValidationFailed        validation                        422     validation
    │   ├── StreamRuleBroken    validation                        422     validation
    │   └── PromptTooLong       validation                        422     validation
    ├── ModelOverloaded         overloaded                        429     overloaded
    ├── ForeignTextError        (a backend or a template has written a part of the message)
    │   ├── ShardFailed         generation                        424     generation
    │   │   ├── NotFinite       generation                        424     nan
    │   │   └── ShardLost       generation                        424     generation
    │   └── TemplateFailed      template_error                    422     template
    ├── FormatViolated          generation                        424     generation
    ├── TimedOut                timeout                           504     timeout
    ├── Incomplete              incomplete_generation             500     incomplete
    │   └── IncompleteStream    incomplete_generation_stream      500     incomplete
    ├── ToolFailed              tool_error                        422     validation
    ├── SuffixNotSupported      suffix not supported              422     validation
    ├── BatchSizeExceeded       batch size exceeded               422     validation
    ├── NoInstances             Input validation error            422     validation
    ├── LengthMismatch          length mismatch                   422     validation
    ├── NotUtf8                 utf8                              422     validation
    ├── NoRoute                 not_found                         404     -
    │   └── NoModel             model_not_found                   404     -
    ├── WrongMethod             method_not_allowed                405     -
    ├── ReadTooSlowly           read too slowly                   408     dropped
    ├── NotServing              unavailable                       503     unavailable
    │   └── ShuttingDown        shutting_down                     503     unavailable
    └── Unhealthy               healthcheck                       503     -

`BodyRejected` is separate: unreadable bodies are reported in plain text, as in TGI.

What is rendered here is TGI's form. `tgi_router.openai` has the form for the routes under /v1.
"""

from __future__ import annotations

import re
from math import ceil
from typing import ClassVar

from starlette.responses import PlainTextResponse, Response

from tgi_router.json_text import dumps


class RouterError(Exception):
    """Base of the tree. Its message is sent to the client."""

    status: ClassVar[int] = 422
    error_type: ClassVar[str]
    failure: ClassVar[str] = "validation"
    """Value of the label `err` of tgi_request_failure."""
    prefix: ClassVar[str] = ""
    retry_after_s: float | None = None
    """Seconds after which a retry may succeed; None if it would fail again."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(self.prefix + detail)


class ValidationFailed(RouterError):
    """A parameter violates a rule of `tgi_router.validation`."""

    error_type = "validation"
    prefix = "Input validation error: "


class StreamRuleBroken(ValidationFailed):
    """A parameter is not supported for streams."""


class PromptTooLong(ValidationFailed):
    """The prompt and the requested tokens exceed a limit. OpenAI's clients identify this error by a separate code."""


class ModelOverloaded(RouterError):
    """No permit is free, or the queue is full."""

    status = 429
    error_type = "overloaded"
    failure = "overloaded"
    prefix = "Model is overloaded"

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


_INNER = re.compile(r"0x[0-9a-fA-F]{6,}|(?:\w:)?(?:/[\w.@+~-]+){2,}")
"""Addresses and paths, which must not reach clients; logs have them."""


class ForeignTextError(RouterError):
    """A backend, or a template from the model's files, has written a part of the message."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(_INNER.sub("…", detail))


class ShardFailed(ForeignTextError):
    """The device failed this request; a retry would most likely fail in the same way."""

    status = 424
    error_type = "generation"
    failure = "generation"
    prefix = "Request failed during generation: Server error: "


class NotFinite(ShardFailed):
    """The model computed NaN for this request. Several of these within a short time indicate a faulty device."""

    failure = "nan"


class ShardLost(ShardFailed):
    """The shard was lost with the request; it may be back for a retry."""

    retry_after_s = 1.0


class FormatViolated(RouterError):
    """A complete response violates a keyword of its JSON schema that masks do not enforce."""

    status = 424
    error_type = "generation"
    failure = "generation"
    prefix = "Request failed during generation: the response violates its JSON schema: "


class TimedOut(RouterError):
    """The request exceeded the time limit of its client or of the operator."""

    status = 504
    error_type = "timeout"
    failure = "timeout"
    prefix = "Request timed out"


class Incomplete(RouterError):
    """The results ended before the generation was complete."""

    status = 500
    error_type = "incomplete_generation"
    failure = "incomplete"
    prefix = "Incomplete generation"


class IncompleteStream(Incomplete):
    """`Incomplete`, as an event of a stream."""

    error_type = "incomplete_generation_stream"
    prefix = "Incomplete generation stream"


class TemplateFailed(ForeignTextError):
    """The messages cannot be rendered into a prompt."""

    error_type = "template_error"
    failure = "template"
    prefix = "Template error: "


class ToolFailed(RouterError):
    """The tools or the tool choice of a request cannot be satisfied."""

    error_type = "tool_error"
    prefix = "Tool error: "


class SuffixNotSupported(RouterError):
    """A completion request has a suffix."""

    error_type = "suffix not supported"
    prefix = "Suffix is not supported and can be achieved by preprocessing the prompt."


class BatchSizeExceeded(RouterError):
    """A request has too many prompts."""

    error_type = "batch size exceeded"
    prefix = "Number of prompts exceeds the maximum allowed batch size of "


class NoInstances(RouterError):
    """A Vertex AI request has no instances."""

    error_type = "Input validation error"
    prefix = "Input validation error"


class LengthMismatch(RouterError):
    """The numbers of inputs and outputs of a KServe request differ."""

    error_type = "length mismatch"
    prefix = "Inputs and outputs length mismatch"


class NotUtf8(RouterError):
    """The bytes of a KServe input are not UTF-8."""

    error_type = "utf8"


class NoRoute(RouterError):
    """Nothing is served at the path."""

    status = 404
    error_type = "not_found"


NO_MODEL = "no model or adapter of this server has this name; /v1/models lists them"


class NoModel(NoRoute):
    """No model or adapter has this name."""

    error_type = "model_not_found"


class WrongMethod(RouterError):
    """The path is served, but not with this method."""

    status = 405
    error_type = "method_not_allowed"


class ReadTooSlowly(RouterError):
    """The client read too slowly for its buffer; sent as an event of the stream."""

    status = 408
    error_type = "read too slowly"
    failure = "dropped"
    prefix = "The client read too slowly"


class NotServing(RouterError):
    """Requests are not accepted: the model is loading, or the shard is being restarted."""

    status = 503
    error_type = "unavailable"
    failure = "unavailable"
    prefix = "The server does not take requests now: "
    retry_after_s = 1.0


class ShuttingDown(NotServing):
    """The server shuts down before the generation is complete; a retry on another server, or after a restart, can succeed."""

    error_type = "shutting_down"
    prefix = "The server is shutting down"


class Unhealthy(RouterError):
    """The shard does not respond."""

    status = 503
    error_type = "healthcheck"
    prefix = "unhealthy"


class BodyRejected(Exception):
    """The request body is unreadable. `status` is 400, 413, 415 or 422."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def retry_headers(error: RouterError) -> dict[str, str]:
    """Return Retry-After headers for temporary errors. OpenAI's clients prefer the one in milliseconds."""
    seconds = error.retry_after_s
    return (
        {}
        if seconds is None
        else {"retry-after": str(max(ceil(seconds), 1)), "retry-after-ms": str(max(ceil(seconds * 1000), 1))}
    )


def error_json(error: RouterError) -> str:
    """Render TGI's error object."""
    return dumps({"error": str(error), "error_type": error.error_type})


def error_response(error: RouterError) -> Response:
    """Render the error object with its status, and with `Retry-After` if clients should retry."""
    headers = retry_headers(error) if error.status in (429, 503) else None  # TGI's clients do not retry after 424
    return Response(error_json(error), status_code=error.status, media_type="application/json", headers=headers)


def body_response(error: BodyRejected) -> Response:
    """Render the plain text with which TGI reports an unreadable body."""
    return PlainTextResponse(str(error), status_code=error.status)
