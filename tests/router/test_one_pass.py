"""Bodies are parsed and validated in one pass; only invalid ones are parsed into a JSON value first, for their errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from tgi_router.bodies import CompatGenerateBody, Parameters
from tgi_router.cloud_bodies import InferBody, VertexBody
from tgi_router.openai_bodies import ChatBody, CompletionBody

WHOLE: dict[type[BaseModel], dict[str, object]] = {
    CompatGenerateBody: {"inputs": "Hi"},
    ChatBody: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionBody: {"prompt": "Hi"},
    VertexBody: {"instances": [{}]},
    InferBody: {"inputs": [{"name": "a", "data": ["Hi"]}], "outputs": [{"name": "b"}]},
}
"""For each model, a body with its required fields."""
NAMES = sorted({spec.alias or name for model in (*WHOLE, Parameters) for name, spec in model.model_fields.items()} | {"unknown"})

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
values = st.recursive(
    scalars | st.sampled_from(["json", "text", "function", "auto", "user"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: model.__name__)
@given(fields=st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=5))
def test_one_pass_gives_the_same_body(model: type[BaseModel], fields: list[tuple[str, object]]) -> None:
    """What is accepted in one pass is accepted from the JSON value, with the same fields; of a repeated field, the last counts."""
    pairs = [*WHOLE[model].items(), *fields]
    data = f"{{{', '.join(f'{json.dumps(name)}: {json.dumps(value)}' for name, value in pairs)}}}".encode()
    try:
        body = model.model_validate_json(data)
    except ValidationError:
        with pytest.raises(ValidationError):
            model.model_validate(from_json(data, allow_inf_nan=False))
        return
    from_value = model.model_validate(from_json(data, allow_inf_nan=False))
    assert (repr(body), body.model_fields_set) == (repr(from_value), from_value.model_fields_set)
