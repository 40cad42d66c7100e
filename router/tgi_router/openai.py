"""The dialect of the routes under /v1: OpenAI's, or TGI's with --strict-tgi.

`Dialect` makes every choice to follow OpenAI where TGI's own behaviour breaks OpenAI's clients. docs/tgi-compatibility.md lists
these choices with their reasons.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from time import time
from typing import Any

from starlette.responses import Response

from tgi_core import __version__
from tgi_core.scheduler.prediction import Prediction
from tgi_core.wire.types import FinishReason, Token
from tgi_router.anthropic_errors import error_object, is_anthropic
from tgi_router.bodies import GrammarShape, Parameters
from tgi_router.caller_names import status_text
from tgi_router.constraints import constraint_of
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
from tgi_router.request_fields import OTHERS, Route, unhonoured, warning
from tgi_router.shown_text import HIDDEN, ShownText
from tgi_router.strict_types import to_single
from tgi_router.tool_calls import Piece
from tgi_router.validation import MAX_STOP_IDS, SWITCHES, Extras, check_choices

FINGERPRINT = f"{__version__}-native"

MAX_STOP = 1024
"""Maximum length of a stop string, in characters: a stream is searched for a partial match of it at every token."""

RESPONSES = "/v1/responses"

MAX_MODEL = 256
"""Maximum length of a model name, in characters: each chunk of a response repeats it."""

_INVALID = (400, 404, 405, 422)
"""Statuses of errors that a retry would meet again."""

_TOKEN_ID = re.compile(r"\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that every chunk of a response repeats."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the routes under /v1 parse requests and render responses: as OpenAI does, or exactly as TGI does when `strict`."""

    strict: bool = False

    # requests

    def parameters(self, body: OpenAIBody, **more: Any) -> Parameters:
        """Return the native parameters of a request. Raises ValidationFailed."""
        stops = [stop for stop in body.stop or [] if stop]
        if not self.strict and any(len(stop) > MAX_STOP for stop in stops):
            raise ValidationFailed(f"`stop` strings must have at most {MAX_STOP} characters")
        if body.model is not None and len(body.model) > MAX_MODEL:
            raise ValidationFailed(f"`model` must have at most {MAX_MODEL} characters")
        greedy = body.temperature == 0
        if self.strict:
            if body.presence_penalty is not None and "repetition_penalty" not in more:
                more["repetition_penalty"] = body.presence_penalty + 2.0
        else:
            more |= self._further(body, greedy)
        return Parameters(
            do_sample=not greedy,
            temperature=None if greedy else body.temperature,
            top_p=None if body.top_p == 1 and not self.strict else body.top_p,
            seed=None if body.seed == -1 else body.seed,
            stop=stops,
            frequency_penalty=body.frequency_penalty,
            adapter_id=None if body.model == "tgi" else body.model,
            max_new_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            **{name: value for name, value in body.further().items() if not (greedy and name in SWITCHES)},
            **more,
        )

    def _further(self, body: OpenAIBody, greedy: bool) -> dict[str, Any]:
        """Return the parameters that vLLM has, and TGI has only on its native routes. Raises ValidationFailed."""
        if body.truncate_prompt_tokens is not None and body.truncate_prompt_tokens < -1:
            raise ValidationFailed("`truncate_prompt_tokens` must be -1, for as many as fit, or a number of tokens")
        return {
            "top_k": None if greedy or body.top_k in (-1, 0) else body.top_k,
            "repetition_penalty": body.repetition_penalty,
            "truncate": None if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens,
        }

    def grammar(self, body: OpenAIBody, response_format: GrammarShape | None = None) -> GrammarShape | None:
        """Return the grammar that constrains the response, if any. Raises ValidationFailed for several."""
        given = None if response_format is None or response_format.plain else response_format
        constraint = None if self.strict else constraint_of(body)
        if constraint is None:
            return given
        if given is not None:
            raise ValidationFailed(f"give `response_format` or `{constraint.field}`, not both")
        return constraint.shape

    def warnings(self, route: Route, body: OpenAIBody, ignored: Iterable[str] = ()) -> dict[str, str]:
        """Return the response header that names ignored fields, with those of `ignored`. Raises ValidationFailed for a field that is
        refused. TGI ignores all."""
        return {} if self.strict else warning([*ignored, *unhonoured(OTHERS[route], body.model_extra or {})])

    def extras(
        self, body: OpenAIBody, logprobs: bool = False, call_schema: dict[str, Any] | None = None, prediction: str = ""
    ) -> Extras:
        """Return the options without a native parameter. TGI accepts OpenAI's and ignores them. Raises ValidationFailed."""
        if self.strict:
            return Extras(logprobs, call_schema)
        return Extras(
            logprobs,
            call_schema,
            check_choices(1 if body.n is None else body.n),
            ignore_eos=bool(body.ignore_eos),
            stop_ids=_stop_ids(body.stop_token_ids or []),
            min_new_tokens=body.min_tokens or 0,
            prompt_logprobs=_prompt_logprobs(body),
            presence_penalty=body.presence_penalty or 0.0,
            logit_bias=tuple(_biases(body.logit_bias)) if isinstance(body.logit_bias, dict) else (),
            prediction=prediction,
        )

    # responses

    def seal(self, prefix: str, model: str) -> Envelope:
        """Create the envelope of a response. `prefix` is the one that OpenAI gives ids of this kind; TGI's ids are empty."""
        return Envelope("" if self.strict else f"{prefix}-{token_hex(12)}", int(time()), model)

    def finish_reason(self, reason: FinishReason, called: bool = False) -> str:
        """Return the finish reason of a response. `called`: it ended with tool calls."""
        if self.strict and reason is FinishReason.STOP_SEQUENCE:
            return "stop_sequence"
        if reason is FinishReason.LENGTH:
            return "length"
        return "tool_calls" if called and not self.strict else "stop"

    def completion_chunk_reason(self, reason: FinishReason | None) -> str | None:
        """Return the finish reason in a chunk of a text completion, where TGI uses its native names."""
        if self.strict:
            return "" if reason is None else reason.value
        return None if reason is None else self.finish_reason(reason)

    def stops(self, parameters: Parameters) -> Sequence[str]:
        """Return the stop strings to strip from the response; TGI strips none."""
        return () if self.strict else parameters.stop

    def shown(self, body: OpenAIBody) -> ShownText:
        """Return what the text of the response has of its tokens."""
        return HIDDEN if self.strict or body.skip_special_tokens in (None, True) else ShownText(special=True)

    def ordered(self, results: list[Result]) -> list[Result]:
        """Order results as they are listed: by prompt, or in TGI by the time at which they finished."""
        return results if self.strict else in_order(results)

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Render the log probabilities of tokens and of their alternatives. TGI omits `bytes`."""
        return {
            "content": [{**self._logprob(token), "top_logprobs": [self._logprob(top) for top in token.top]} for token in tokens]
        }

    def _logprob(self, token: Any) -> dict[str, Any]:
        fields = {"token": token.text, "logprob": shortest(token.logprob)}
        return fields if self.strict else {**fields, "bytes": list(token.text.encode())}

    def message(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Assemble the message of a complete response. Raises ToolFailed where TGI does: for a truncated tool call."""
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
        """Render a part of a streamed tool call. Only the first has the id and the name; TGI repeats the id with a null name."""
        function = {"name": piece.name, "arguments": piece.text}
        if self.strict:
            return {"index": 0, "id": "0", "type": "function", "function": function}
        if piece.name is None:
            return {"index": piece.call, "function": {"arguments": piece.text}}
        return {"index": piece.call, "id": _call_id(), "type": "function", "function": function}

    # errors

    def speaks(self, path: str) -> bool:
        """Return whether errors of a route have OpenAI's or Anthropic's format."""
        return not self.strict and path.startswith("/v1/")

    def status(self, error: RouterError | BodyRejected, path: str = "") -> int:
        """Return the HTTP status of an error. OpenAI's clients retry after 503, but not after TGI's 424. On the routes that TGI does not
        have, an invalid request is 400, as in the APIs that they come from."""
        if isinstance(error, ShardLost) and not self.strict:
            return 503
        return 400 if error.status == 422 and (is_anthropic(path) or path == RESPONSES) else error.status

    def error_response(self, error: RouterError, path: str) -> Response:
        """Render an error of a route as OpenAI's error object, with TGI's `error_type` added, or as Anthropic's."""
        status, headers = self.status(error, path), retry_headers(error)
        if status == 503:
            headers["x-should-retry"] = "true"
        elif status in _INVALID:
            headers["x-should-retry"] = "false"
        if is_anthropic(path):
            return Response(dumps(error_object(status, status_text(error, path))), status, headers, "application/json")
        return Response(dumps(self._error_body(error, path)), status, headers, "application/json")

    def body_response(self, error: BodyRejected, path: str) -> Response:
        """Render the error of an unreadable body as OpenAI's error object, or as Anthropic's."""
        status = self.status(error, path)
        fields = {"message": str(error), "type": "invalid_request_error", "param": None, "code": "invalid_body"}
        body = error_object(status, str(error)) if is_anthropic(path) else {"error": fields, "error_type": "invalid_body"}
        return Response(dumps(body), status, {"x-should-retry": "false"}, "application/json")

    def error_event_json(self, error: RouterError) -> str:
        """Render an error within a stream. TGI reports status 422 for every error."""
        if self.strict:
            return dumps({"error": {"message": str(error), "http_status_code": 422}})
        body = self._error_body(error)
        return dumps({**body, "error": {**body["error"], "http_status_code": self.status(error)}})

    def _error_body(self, error: RouterError, path: str | None = None) -> dict[str, Any]:
        kind = (
            "invalid_request_error" if error.status in _INVALID else "rate_limit_error" if error.status == 429 else "server_error"
        )
        code = "context_length_exceeded" if isinstance(error, PromptTooLong) else error.error_type
        return {
            "error": {"message": status_text(error, path), "type": kind, "param": None, "code": code},
            "error_type": error.error_type,
        }

    def respond(self, path: str, error: RouterError | BodyRejected) -> Response:
        """Return the error response for a request to `path` that failed before its response began."""
        if isinstance(error, BodyRejected):
            return self.body_response(error, path) if self.speaks(path) else body_response(error)
        return self.error_response(error, path) if self.speaks(path) else error_response(error)


def _prompt_logprobs(body: OpenAIBody) -> bool:
    asked = body.prompt_logprobs
    if asked is None:
        return False
    if asked != 0:
        raise ValidationFailed(f"`prompt_logprobs` must be 0, for the prompt's own tokens; others have none. Given: {asked}")
    if body.stream:
        raise ValidationFailed("`prompt_logprobs` is not supported when streaming tokens")
    return True


def _stop_ids(ids: list[int]) -> tuple[int, ...]:
    if len(ids) > MAX_STOP_IDS:
        raise ValidationFailed(f"`stop_token_ids` supports up to {MAX_STOP_IDS} tokens. Given: {len(ids)}")
    return tuple(dict.fromkeys(ids))


def _biases(given: dict[str, Any]) -> Iterator[tuple[int, float]]:
    for token, bias in given.items():
        if not _TOKEN_ID.fullmatch(token) or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValidationFailed("`logit_bias` maps token ids to numbers")
        try:
            # validation rejects biases beyond the limits; clamped here, since a huge number does not fit float32
            yield int(token), to_single(min(max(bias, -101), 101))
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
    """Sum the tokens of finished choices; a prompt counts once, however many choices it has. Drafts are counted where there was a
    prediction."""
    prompts = [choice for choice in choices if choice.sample == 0]
    prompt = sum(len(choice.request.input_ids) for choice in prompts)
    completion = sum(choice.finished.generated_tokens for choice in choices if choice.finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.stream.cached for choice in prompts)},
        **_of_predictions([choice.stream.prediction for choice in choices if choice.stream.prediction]),
    }


def _of_predictions(predictions: Sequence[Prediction]) -> dict[str, Any]:
    if not predictions:
        return {}
    accepted, rejected = (sum(getattr(each, name) for each in predictions) for name in ("accepted", "rejected"))
    return {"completion_tokens_details": {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}}


def usage_of(results: Sequence[Result]) -> dict[str, Any]:
    """Sum the tokens of results."""
    return usage([result.choice for result in results])
