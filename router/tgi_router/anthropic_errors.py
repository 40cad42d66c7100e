"""Errors in the form of Anthropic's API."""

from __future__ import annotations

from typing import Any

PATH = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    424: "api_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    """Return whether a path is one of Anthropic's API."""
    return path == PATH or path.startswith(f"{PATH}/")


def id_headers(path: str, request_id: str) -> dict[str, str]:
    """Return the headers that have the id of a request to `path`: Anthropic's clients read one of their own."""
    return {"x-request-id": request_id, **({"request-id": request_id} if is_anthropic(path) else {})}


def error_object(status: int, message: str) -> dict[str, Any]:
    """Return the error object for an HTTP status."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
