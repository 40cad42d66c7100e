"""What chat and completions share: the mapping onto native parameters, and OpenAI's words.

Here lies every choice to follow OpenAI where TGI's own behaviour breaks OpenAI's clients: a top_p of 1 is off, ids are not empty,
a stop string ends an answer with the reason "stop".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from time import time
from typing import Any

from tgi_core import __version__
from tgi_core.client.types import FinishReason
from tgi_router.bodies import OpenAIBody, Parameters
from tgi_router.errors import RouterError, ValidationFailed
from tgi_router.inference import Choice, Result
from tgi_router.json_text import dumps

FINGERPRINT = f"{__version__}-native"

FINISH_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str

    @classmethod
    def seal(cls, prefix: str, model: str) -> Envelope:
        """A new one: `prefix` is OpenAI's for the kind of answer."""
        return cls(f"{prefix}-{token_hex(12)}", int(time()), model)


def parameters_of(body: OpenAIBody, **more: Any) -> Parameters:
    """The native parameters of a call. Raises ValidationFailed for what cannot be honoured yet."""
    if body.presence_penalty:
        raise ValidationFailed("`presence_penalty` != 0 is not supported")
    greedy = body.temperature == 0
    return Parameters(
        do_sample=not greedy,
        temperature=None if greedy else body.temperature,
        top_p=None if body.top_p == 1 else body.top_p,
        seed=body.seed,
        stop=[stop for stop in body.stop or [] if stop],
        frequency_penalty=body.frequency_penalty,
        max_new_tokens=body.max_tokens,
        **more,
    )


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    """Tokens of finished choices, summed."""
    prompt = sum(choice.valid.input_length for choice in choices)
    completion = sum(choice.finished.generated_tokens for choice in choices if choice.finished)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage_of(results: Sequence[Result]) -> dict[str, int]:
    """Tokens of results, summed."""
    return usage([result.choice for result in results])


def error_event_json(error: RouterError) -> str:
    """How TGI tells an error inside a stream of these routes: the status is 422 whatever the error."""
    return dumps({"error": {"message": str(error), "http_status_code": 422}})
