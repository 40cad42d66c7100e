"""Every field of the bodies of the Messages and Responses APIs, as their tables say."""

from __future__ import annotations

from typing import Any

import pytest
from tgi_router.agent_fields import MESSAGES, RESPONSES
from tgi_router.anthropic_bodies import MessagesBody
from tgi_router.request_fields import WARNING, RequestField, Route, Treatment
from tgi_router.responses_bodies import ResponsesBody

from tests.router.serving import Served
from tests.router.test_request_fields import roomy

__all__ = ["roomy"]

BODIES: dict[Route, dict[str, Any]] = {
    Route.MESSAGES: {"model": "tgi", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]},
    Route.RESPONSES: {"input": "Hi", "max_output_tokens": 8},
}


def ask(served: Served, route: Route, **more: Any) -> Any:
    """A request with a field."""
    return served.client.post(f"/v1/{route.value}", json={**BODIES[route], **more})


@pytest.mark.parametrize("field", [*MESSAGES, *RESPONSES], ids=lambda field: f"{field.route.value} {field.name}")
@pytest.mark.parametrize("stream", [False, True])
def test_treatment(roomy: Served, field: RequestField, stream: bool) -> None:
    """An honoured field costs no warning; a refused one is 400 with its name; an ignored one is named in a header, of a stream too; null
    and what asks for nothing are neither."""
    answer = ask(roomy, field.route, **{"stream": stream, field.name: field.sample})
    if field.treatment is Treatment.REFUSED:
        assert answer.status_code == 400 and f"`{field.name}` is not supported" in answer.json()["error"]["message"]
    else:
        assert answer.status_code == 200, answer.text
        warned = f"ignored fields: {field.name}" if field.treatment is Treatment.IGNORED else None
        assert answer.headers.get(WARNING) == warned
    if field.treatment is not Treatment.HONOURED:
        for value in (None, *field.neutral):
            answer = ask(roomy, field.route, **{"stream": stream, field.name: value})
            assert answer.status_code == 200 and WARNING not in answer.headers, (value, answer.text)


def test_all_fields_of_the_bodies_are_listed() -> None:
    """The tables have every field of the bodies as honoured, and no other as such."""
    for body, fields in ((MessagesBody, MESSAGES), (ResponsesBody, RESPONSES)):
        assert set(body.model_fields) == {each.name for each in fields if each.treatment is Treatment.HONOURED}
        assert len({each.name for each in fields}) == len(fields)


@pytest.mark.parametrize(
    ("route", "given", "names"),
    [
        (Route.MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        (Route.MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        (Route.RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (Route.RESPONSES, {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        (Route.RESPONSES, {"include": ["reasoning.encrypted_content"]}, "include.reasoning.encrypted_content"),
        (Route.RESPONSES, {"maxtokens": 1}, "maxtokens"),
    ],
)
def test_nested_and_unknown_fields(roomy: Served, route: Route, given: dict[str, Any], names: str) -> None:
    """Nested fields without effect, and names that nobody knows, are named."""
    assert ask(roomy, route, **given).headers[WARNING] == f"ignored fields: {names}"
