"""OpenAI's words on the routes under /v1, or with --strict-tgi TGI's.

Here lies every choice to follow OpenAI where TGI's own behaviour breaks OpenAI's clients; `Dialect` makes each of them, and
docs/tgi-compatibility.md lists them with their reasons.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from time import time
from typing import Any

from starlette.responses import Response

from tgi_core import __version__
from tgi_core.wire.types import FinishReason, Token
from tgi_router.bodies import Parameters
from tgi_router.errors import (
    BodyRejected,
    PromptTooLong,
    RouterError,
    ShardLost,
    ToolFailed,
    ValidationFailed,
    body_response,
    error_response,
    retry_headers,
)
from tgi_router.inference import Choice, Result, in_order
from tgi_router.json_text import dumps, shortest
from tgi_router.openai_bodies import OpenAIBody
from tgi_router.strict_types import to_single
from tgi_router.tool_calls import Piece
from tgi_router.validation import SWITCHES, Extras, check_choices

FINGERPRINT = f"{__version__}-native"

MAX_STOP = 1024
"""Characters of a stop string: the search for a beginning of one in a stream costs as much at every token."""

MAX_MODEL = 256
"""Characters of a model's name, which each chunk of an answer repeats."""

_TOKEN_ID = re.compile(r"\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the routes under /v1 read and speak: OpenAI's way, or TGI's to the letter when `strict`."""

    strict: bool = False

    # what is asked

    def parameters(self, body: OpenAIBody, **more: Any) -> Parameters:
        """The native parameters of a call. Raises ValidationFailed."""
        stops = [stop for stop in body.stop or [] if stop]
        if not self.strict and any(len(stop) > MAX_STOP for stop in stops):
            raise ValidationFailed(f"`stop` strings must have at most {MAX_STOP} characters")
        if body.model is not None and len(body.model) > MAX_MODEL:
            raise ValidationFailed(f"`model` must have at most {MAX_MODEL} characters")
        greedy = body.temperature == 0
        if self.strict and body.presence_penalty is not None and "repetition_penalty" not in more:
            more["repetition_penalty"] = body.presence_penalty + 2.0
        return Parameters(
            do_sample=not greedy,
            temperature=None if greedy else body.temperature,
            top_p=None if body.top_p == 1 and not self.strict else body.top_p,
            seed=body.seed,
            stop=stops,
            frequency_penalty=body.frequency_penalty,
            adapter_id=None if body.model == "tgi" else body.model,
            max_new_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            **{name: value for name, value in body.further().items() if not (greedy and name in SWITCHES)},
            **more,
        )

    def extras(self, body: OpenAIBody, logprobs: bool = False, call_schema: dict[str, Any] | None = None) -> Extras:
        """What else is asked for; of OpenAI's fields TGI takes all and does nothing. Raises ValidationFailed."""
        if self.strict:
            return Extras(logprobs, call_schema)
        return Extras(
            logprobs,
            call_schema,
            check_choices(1 if body.n is None else body.n),
            presence_penalty=body.presence_penalty or 0.0,
            logit_bias=tuple(_biases(body.logit_bias)) if isinstance(body.logit_bias, dict) else (),
        )

    # what is answered

    def seal(self, prefix: str, model: str) -> Envelope:
        """The envelope of an answer. `prefix` is OpenAI's for its kind; TGI's ids are empty."""
        return Envelope("" if self.strict else f"{prefix}-{token_hex(12)}", int(time()), model)

    def finish_reason(self, reason: FinishReason, called: bool = False) -> str:
        """Why an answer ended. `called`: with tool calls."""
        if self.strict and reason is FinishReason.STOP_SEQUENCE:
            return "stop_sequence"
        if reason is FinishReason.LENGTH:
            return "length"
        return "tool_calls" if called and not self.strict else "stop"

    def completion_chunk_reason(self, reason: FinishReason | None) -> str | None:
        """The same in a chunk of a text completion, where TGI has words of its own."""
        if self.strict:
            return "" if reason is None else reason.value
        return None if reason is None else self.finish_reason(reason)

    def stops(self, parameters: Parameters) -> Sequence[str]:
        """The stop strings to leave out of the answer; TGI leaves them in."""
        return () if self.strict else parameters.stop

    def ordered(self, results: list[Result]) -> list[Result]:
        """Results as they are listed: by their prompts, in TGI by their ends."""
        return results if self.strict else in_order(results)

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Logprobs of tokens and of their rivals; TGI has no bytes."""
        return {
            "content": [{**self._logprob(token), "top_logprobs": [self._logprob(top) for top in token.top]} for token in tokens]
        }

    def _logprob(self, token: Any) -> dict[str, Any]:
        fields = {"token": token.text, "logprob": shortest(token.logprob)}
        return fields if self.strict else {**fields, "bytes": list(token.text.encode())}

    def message(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The message of a whole answer. Raises ToolFailed where TGI does: for a call that is not complete."""
        text = "".join(piece.text for piece in pieces if piece.call is None)
        names = [piece.name for piece in pieces if piece.name is not None]
        parts: dict[int, list[str]] = defaultdict(list)
        for piece in pieces:
            if piece.call is not None:
                parts[piece.call].append(piece.text)
        arguments = ["".join(parts[call]) for call in range(len(names))]
        if not names:
            return {"role": "assistant", "content": text}
        if self.strict:
            called = {"description": None, "name": names[0], "arguments": _complete(arguments[0])}
            return {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": called}]}
        calls = [
            {"id": _call_id(), "type": "function", "function": {"name": name, "arguments": given}}
            for name, given in zip(names, arguments, strict=True)
        ]
        return {"role": "assistant", "content": text or None, "tool_calls": calls}

    def call_delta(self, piece: Piece) -> dict[str, Any]:
        """A part of a tool call in a stream. Id and name come once; TGI repeats the id and has a null for the name."""
        function = {"name": piece.name, "arguments": piece.text}
        if self.strict:
            return {"index": 0, "id": "0", "type": "function", "function": function}
        if piece.name is None:
            return {"index": piece.call, "function": {"arguments": piece.text}}
        return {"index": piece.call, "id": _call_id(), "type": "function", "function": function}

    # what goes wrong

    def speaks(self, path: str) -> bool:
        """Whether errors of a route have OpenAI's form."""
        return not self.strict and path.startswith("/v1/")

    def status(self, error: RouterError) -> int:
        """OpenAI's clients try again after 503, and take TGI's 424 for final."""
        return 503 if isinstance(error, ShardLost) and not self.strict else error.status

    def error_response(self, error: RouterError) -> Response:
        """OpenAI's error object, which still has TGI's `error_type`."""
        status, headers = self.status(error), retry_headers(error)
        if status == 503:
            headers["x-should-retry"] = "true"
        elif status == 422:
            headers["x-should-retry"] = "false"
        return Response(dumps(self._error_body(error)), status, headers, "application/json")

    def body_response(self, error: BodyRejected) -> Response:
        """A body that cannot be read, in the same form."""
        fields = {"message": str(error), "type": "invalid_request_error", "param": None, "code": "invalid_body"}
        answer = dumps({"error": fields, "error_type": "invalid_body"})
        return Response(answer, error.status, {"x-should-retry": "false"}, "application/json")

    def error_event_json(self, error: RouterError) -> str:
        """An error inside a stream. TGI's status is 422 whatever the error."""
        if self.strict:
            return dumps({"error": {"message": str(error), "http_status_code": 422}})
        body = self._error_body(error)
        return dumps({**body, "error": {**body["error"], "http_status_code": self.status(error)}})

    def _error_body(self, error: RouterError) -> dict[str, Any]:
        kind = "invalid_request_error" if error.status == 422 else "rate_limit_error" if error.status == 429 else "server_error"
        code = "context_length_exceeded" if isinstance(error, PromptTooLong) else error.error_type
        return {"error": {"message": str(error), "type": kind, "param": None, "code": code}, "error_type": error.error_type}

    def respond(self, path: str, error: RouterError | BodyRejected) -> Response:
        """The answer to a call of `path` that failed before it was answered."""
        if isinstance(error, BodyRejected):
            return self.body_response(error) if self.speaks(path) else body_response(error)
        return self.error_response(error) if self.speaks(path) else error_response(error)


def _biases(given: dict[str, Any]) -> Iterator[tuple[int, float]]:
    for token, bias in given.items():
        if not _TOKEN_ID.fullmatch(token) or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValidationFailed("`logit_bias` maps token ids to numbers")
        try:
            yield (
                int(token),
                to_single(min(max(bias, -101), 101)),
            )  # beyond is refused with the other rules, without a huge number
        except ValueError as error:
            raise ValidationFailed(f"`logit_bias`: {error}") from error


def _call_id() -> str:
    return f"call_{token_hex(12)}"


def _complete(arguments: str) -> str:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"Failed to parse generated text: {error}") from error
    return arguments


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Tokens of finished choices, summed; a prompt counts once however many choices it has."""
    prompts = [choice for choice in choices if choice.sample == 0]
    prompt = sum(len(choice.request.input_ids) for choice in prompts)
    completion = sum(choice.finished.generated_tokens for choice in choices if choice.finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.stream.cached for choice in prompts)},
    }


def usage_of(results: Sequence[Result]) -> dict[str, Any]:
    """Tokens of results, summed."""
    return usage([result.choice for result in results])
