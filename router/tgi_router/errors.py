"""What a client can be told instead of an answer.

    RouterError                 error_type                        status  counted as
    ├── ValidationFailed        validation                        422     validation
    │   └── StreamRuleBroken    validation                        422     validation
    ├── ModelOverloaded         overloaded                        429     overloaded
    ├── ShardFailed             generation                        424     generation
    ├── Incomplete              incomplete_generation             500     incomplete
    │   └── IncompleteStream    incomplete_generation_stream      500     incomplete
    ├── TemplateFailed          template_error                    422     template
    ├── ToolFailed              tool_error                        422     validation
    ├── SuffixNotSupported      suffix not supported              422     validation
    ├── BatchSizeExceeded       batch size exceeded               422     validation
    └── Unhealthy               healthcheck                       503     -

`BodyRejected` stands apart: a body that cannot be read is answered in plain text, as TGI does.
"""

from __future__ import annotations

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

    def __init__(self, detail: str = "") -> None:
        super().__init__(self.prefix + detail)


class ValidationFailed(RouterError):
    """A parameter breaks a rule of `tgi_router.validation`."""

    error_type = "validation"
    prefix = "Input validation error: "


class StreamRuleBroken(ValidationFailed):
    """A parameter that only streams refuse."""


class ModelOverloaded(RouterError):
    """No permit or no room in the queue."""

    status = 429
    error_type = "overloaded"
    failure = "overloaded"
    prefix = "Model is overloaded"


class ShardFailed(RouterError):
    """The device or the shard failed the request."""

    status = 424
    error_type = "generation"
    failure = "generation"
    prefix = "Request failed during generation: Server error: "


class Incomplete(RouterError):
    """The results ended before the answer was complete."""

    status = 500
    error_type = "incomplete_generation"
    failure = "incomplete"
    prefix = "Incomplete generation"


class IncompleteStream(Incomplete):
    """The same, told inside a stream."""

    error_type = "incomplete_generation_stream"
    prefix = "Incomplete generation stream"


class TemplateFailed(RouterError):
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


def error_json(error: RouterError) -> str:
    """TGI's error object."""
    return dumps({"error": str(error), "error_type": error.error_type})


def error_response(error: RouterError) -> Response:
    """The error object with its status; clients that back off are told for how long."""
    headers = {"retry-after": "1"} if error.status == 429 else None
    return Response(error_json(error), status_code=error.status, media_type="application/json", headers=headers)


def body_response(error: BodyRejected) -> Response:
    """The plain text that TGI answers to a body it cannot read."""
    return PlainTextResponse(str(error), status_code=error.status)
