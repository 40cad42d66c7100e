"""The answers as types: what the OpenAPI document says, and what the tests hold the rendered answers against.

Answers are rendered field by field where they are made, which is faster and keeps TGI's order; these types describe, they are not
used to answer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Logprob = float | None
"""null for what JSON cannot hold: minus infinity."""
Reason = Literal["length", "eos_token", "stop_sequence"]


class Answer(BaseModel):
    """Base of all answers: nothing is in them that is not listed."""

    model_config = ConfigDict(extra="forbid")


class Token(Answer):
    """A generated token."""

    id: int
    text: str
    logprob: Logprob
    special: bool


class PrefillToken(Answer):
    """A token of the prompt."""

    id: int
    text: str
    logprob: Logprob


class Sequence(Answer):
    """How an answer came about."""

    finish_reason: Reason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] = []


class BestOfSequence(Sequence):
    """A sample that was not the best."""

    generated_text: str


class Details(Sequence):
    """The same for the best one."""

    best_of_sequences: list[BestOfSequence] = []


class GenerateResponse(Answer):
    """The answer to a native request."""

    generated_text: str
    details: Details | None = None


class StreamDetails(Answer):
    """How a streamed answer came about."""

    finish_reason: Reason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(Answer):
    """An event of a native stream; the last one has the whole text."""

    index: int
    token: Token
    top_tokens: list[Token] = []
    generated_text: str | None
    details: StreamDetails | None


class ErrorResponse(Answer):
    """TGI's error object."""

    error: str
    error_type: str


class SimpleToken(Answer):
    """A token and the bytes of the input that it covers."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenizeResponse(Answer):
    """A conversation as the model would read it."""

    tokenize_response: list[SimpleToken]
    templated_text: str


class PrefixCaching(Answer):
    """Whether equal beginnings of prompts are computed once, and how often that was so."""

    enabled: bool
    query_tokens: int
    hit_tokens: int


class KernelInfo(Answer):
    """How a part of the model's work is done on this machine, and why so."""

    part: str
    name: str
    reason: str


class Info(Answer):
    """The model and the limits."""

    model_id: str
    model_sha: str | None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    prefix_caching: PrefixCaching
    kernels: list[KernelInfo]
    adapters: list[str] = []
    """Where there are any."""


class WorkDone(Answer):
    """How far slow work has come."""

    what: str
    done: int
    total: int
    unit: str


class State(Answer):
    """The phase of a server's life."""

    phase: Literal["starting", "serving", "restarting", "draining", "failed"]
    reason: str | None = None
    progress: WorkDone | None = None


class VertexResponse(Answer):
    """One text per instance."""

    predictions: list[str]


class Live(Answer):
    """KServe's answer to probes."""

    live: bool


class Metadata(Answer):
    """KServe's description of a server or a model."""

    name: str
    version: str
    extensions: list[str]


class InferOutput(Answer):
    """A text, as bytes or as it is."""

    name: str
    shape: list[int]
    datatype: Literal["BYTES"]
    data: list[Annotated[int, Field(ge=0, le=255)]] | list[str]


class InferResponse(Answer):
    """KServe's answer to an inference."""

    id: str | None
    outputs: list[InferOutput]


NativeEvents = StreamResponse | ErrorResponse
