"""Request bodies of Vertex AI's and KServe's routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tgi_router.bodies import PARAMETERS, Parameters, sampled
from tgi_router.strict_types import Body, ListOf


class VertexBody(Body):
    """A Vertex AI prediction request: native requests and chats in any combination."""

    instances: ListOf[dict[str, Any]] = Field(
        description="The requests, at least one. Each is a body of `/generate`, if it has `inputs`, or of `/v1/chat/completions`.",
        examples=[[{"inputs": "My name is Olivier and I"}]],
    )
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="Default `parameters` of native requests that have none.",
        examples=[{"max_new_tokens": 20}],
    )


Byte = Annotated[int, Field(ge=0, le=255)]


class InferInput(Body):
    """A prompt, as text or as bytes."""

    name: str = Field(description="Any name.", examples=["prompt"])
    shape: ListOf[int] = Field(default=[], description="Shape of `data`; ignored.", examples=[[1]])
    datatype: str = Field(default="BYTES", description="Type of `data`; ignored.", examples=["BYTES"])
    data: ListOf[Byte] | ListOf[str] = Field(
        description="The prompt: UTF-8 bytes as numbers, or strings, which are concatenated.",
        examples=[["My name is Olivier and I"]],
    )


class InferOutputName(Body):
    """Name of an output."""

    name: str = Field(description="Any name.", examples=["text"])


class InferBody(Body):
    """A KServe inference request: prompts, with a name for each output."""

    id: str | None = Field(default=None, description="Identifier of the request; returned in the response.", examples=["42"])
    parameters: Parameters = Field(default_factory=sampled, description=PARAMETERS, examples=[{"max_new_tokens": 20}])
    inputs: ListOf[InferInput] = Field(
        description="The prompts. At most the server's `max_client_batch_size`.",
        examples=[[{"name": "prompt", "data": ["My name is Olivier and I"]}]],
    )
    outputs: ListOf[InferOutputName] = Field(description="The requested outputs: one per input.", examples=[[{"name": "text"}]])
