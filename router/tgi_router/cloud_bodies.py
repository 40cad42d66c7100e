"""The bodies of Vertex's and KServe's routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tgi_router.bodies import PARAMETERS, Parameters, sampled
from tgi_router.strict_types import Body, ListOf


class VertexBody(Body):
    """Native requests and conversations, any number of each."""

    instances: ListOf[dict[str, Any]] = Field(
        description="The requests: each is the body of `/generate`, which has `inputs`, or of `/v1/chat/completions`. At least one.",
        examples=[[{"inputs": "My name is Olivier and I"}]],
    )
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="The `parameters` of native requests that bring none.",
        examples=[{"max_new_tokens": 20}],
    )


Byte = Annotated[int, Field(ge=0, le=255)]


class InferInput(Body):
    """A prompt, as bytes or as text."""

    name: str = Field(description="Any name.", examples=["prompt"])
    shape: ListOf[int] = Field(default=[], description="The shape of `data`; it is not used.", examples=[[1]])
    datatype: str = Field(default="BYTES", description="The type of `data`; it is not used.", examples=["BYTES"])
    data: ListOf[Byte] | ListOf[str] = Field(
        description="The prompt: bytes of UTF-8 as numbers, or strings, which are put together.",
        examples=[["My name is Olivier and I"]],
    )


class InferOutputName(Body):
    """The name under which a text is to be answered."""

    name: str = Field(description="Any name.", examples=["text"])


class InferBody(Body):
    """Prompts, with a name for each answer."""

    id: str | None = Field(default=None, description="Is repeated in the answer.", examples=["42"])
    parameters: Parameters = Field(default_factory=sampled, description=PARAMETERS, examples=[{"max_new_tokens": 20}])
    inputs: ListOf[InferInput] = Field(
        description="The prompts. At most the server's `max_client_batch_size`.",
        examples=[[{"name": "prompt", "data": ["My name is Olivier and I"]}]],
    )
    outputs: ListOf[InferOutputName] = Field(description="As many as there are inputs.", examples=[[{"name": "text"}]])
