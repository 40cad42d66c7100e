"""Whatever a body holds, the answer is a refusal or a success, never a fault of the server."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tgi_router.anthropic_bodies import MessagesBody
from tgi_router.bodies import GenerateBody, Parameters
from tgi_router.openai_bodies import ChatBody, CompletionBody
from tgi_router.responses_bodies import ResponsesBody

from tests.router.serving import Served

SCALARS = (
    st.none() | st.booleans() | st.text(max_size=8) | st.floats()
    | st.sampled_from([-1, 0, 1, 5, 2**31, 2**32, 2**63, 2**64, 10**400, 1e308, -0.0, 1e-46])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "x"])},
        optional={"content": st.text(max_size=8) | VALUES, "tool_calls": st.lists(st.dictionaries(st.text(max_size=4), VALUES))},
    ),
    max_size=3,
)


BLOCKS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant"]),
            "content": st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image"])},
                    optional={
                        **dict.fromkeys(("text", "id", "name", "tool_use_id", "thinking"), st.text(max_size=4)),
                        **dict.fromkeys(("input", "content", "is_error"), VALUES),
                    },
                ),
                max_size=3,
            ),
        }
    ),
    max_size=3,
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"]),
            "role": st.sampled_from(["user", "assistant", "developer"]),
            **dict.fromkeys(("call_id", "name", "arguments"), st.text(max_size=4)),
            **dict.fromkeys(("content", "output", "summary"), st.text(max_size=4) | VALUES),
        },
    ),
    max_size=4,
)


def fields(model: Any, /, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies with what is required, and any value in any field that there is."""
    others = {name: VALUES for name in [*model.model_fields, "stream", "max_completion_tokens"] if name not in known}
    return st.fixed_dictionaries(known, optional=others)


BODIES = st.one_of(
    st.tuples(st.just("/generate"), fields(GenerateBody, inputs=st.text(max_size=9), parameters=fields(Parameters))),
    st.tuples(st.just("/"), fields(GenerateBody, inputs=st.text(max_size=9), parameters=fields(Parameters))),
    st.tuples(st.just("/v1/chat/completions"), fields(ChatBody, messages=MESSAGES)),
    st.tuples(
        st.just("/v1/completions"), fields(CompletionBody, prompt=st.text(max_size=9) | st.lists(st.text(max_size=4), max_size=6))
    ),
    st.tuples(
        st.just("/v1/messages"),
        fields(MessagesBody, model=st.just("tgi"), messages=MESSAGES | BLOCKS, max_tokens=st.integers(1, 9)),
    ),
    st.tuples(st.just("/v1/responses"), fields(ResponsesBody, input=st.text(max_size=9) | ITEMS)),
    st.tuples(st.just("/tokenize"), fields(GenerateBody, inputs=st.text(max_size=99))),
)


@settings(max_examples=400, deadline=None)
@given(BODIES)
def test_no_body_is_a_fault(hello: Served, case: tuple[str, dict[str, Any]]) -> None:
    """Any value in any field of any route is answered with 200 or with a refusal."""
    path, body = case
    content = json.dumps(body).encode()
    answer = hello.client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 422), answer.text
    assert "Traceback" not in answer.text and ".py" not in answer.text
