"""Names of parameters as the caller wrote them: OpenAI's or Anthropic's under /v1, TGI's on all other routes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tgi_router.agent_fields import MESSAGES, RESPONSES
from tgi_router.anthropic_bodies import MessagesBody
from tgi_router.anthropic_errors import is_anthropic
from tgi_router.bodies import Parameters
from tgi_router.errors import RouterError, ValidationFailed
from tgi_router.openai_bodies import ChatBody, CompletionBody
from tgi_router.request_fields import FIELDS
from tgi_router.responses_bodies import ResponsesBody

_COMMON = {"max_new_tokens": "max_tokens", "truncate": "truncate_prompt_tokens", "adapter_id": "model"}
_CHAT = {**_COMMON, "inputs": "messages", "top_n_tokens": "top_logprobs"}
_COMPLETIONS = {**_COMMON, "inputs": "prompt", "top_n_tokens": "logprobs"}
_MESSAGES = {**_COMMON, "inputs": "messages", "stop": "stop_sequences"}
_RESPONSES = {**_COMMON, "max_new_tokens": "max_output_tokens", "inputs": "input", "messages": "input"}
_QUOTED = re.compile(r"`(\w+)`", re.ASCII)
_CHECKS = {
    "inputs",
    *Parameters.model_fields,
    *ChatBody.model_fields,
    *CompletionBody.model_fields,
    *MessagesBody.model_fields,
    *ResponsesBody.model_fields,
    *(each.name for each in (*FIELDS, *MESSAGES, *RESPONSES)),
}


def in_callers_names(path: str, text: str) -> str:
    """Return the message of an error of validation, which has TGI's names, for a route under /v1."""
    names = _names(path)
    return _QUOTED.sub(lambda found: f"`{names.get(found[1], found[1])}`", text)


def _names(path: str) -> Mapping[str, str]:
    if is_anthropic(path):
        return _MESSAGES
    if path.endswith("/responses"):
        return _RESPONSES
    return _CHAT if "chat" in path else _COMPLETIONS


def failed_check(error: BaseException | None) -> str | None:
    """Return the parameter whose check failed, for logs: never a text of the client."""
    if not isinstance(error, ValidationFailed):
        return None
    text = str(error).removeprefix(ValidationFailed.prefix)
    if text.startswith("grammar"):
        return "grammar"
    return next((name for name in _QUOTED.findall(text) if name in _CHECKS), None)


def status_text(error: RouterError, path: str | None) -> str:
    """Return the message of an error for the caller of `path`; None for a native route."""
    return in_callers_names(path, str(error)) if path is not None and isinstance(error, ValidationFailed) else str(error)
