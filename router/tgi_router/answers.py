"""The answers as types: what the OpenAPI document says, and what the tests hold the rendered answers against.

Answers are rendered field by field where they are made, which is faster and keeps TGI's order; these types describe, they are not
used to answer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Logprob = float | None
"""null for what JSON cannot hold: minus infinity."""
Reason = Literal["length", "eos_token", "stop_sequence"]

LOGPROB = "Its log probability; null for minus infinity, and for a prompt's first token."
REASON = (
    "Why the text ended: `length`: it has as many tokens as were asked for or as there is room for; `eos_token`: the model ended it; "
    "`stop_sequence`: a string of `stop` came."
)
SEED = "The seed of the random numbers; null if nothing was drawn."


class Answer(BaseModel):
    """Base of all answers: nothing is in them that is not listed."""

    model_config = ConfigDict(extra="forbid")


class Token(Answer):
    """A generated token."""

    id: Count = Field(description="Its id in the model's vocabulary.", examples=[42])
    text: str = Field(description="Its text.", examples=[" am"])
    logprob: Logprob = Field(description="Its log probability; null for minus infinity.", examples=[-0.34])
    special: bool = Field(description="Whether it is a token that is no text, such as the end of a turn.", examples=[False])


class PrefillToken(Answer):
    """A token of the prompt."""

    id: Count = Field(description="Its id in the model's vocabulary.", examples=[42])
    text: str = Field(description="Its text.", examples=["My"])
    logprob: Logprob = Field(description=LOGPROB, examples=[-0.34])


_TOKEN = {"id": 42, "text": " am", "logprob": -0.34, "special": False}
_SEQUENCE = {"finish_reason": "length", "generated_tokens": 1, "seed": 42, "prefill": [], "tokens": [_TOKEN]}


class Sequence(Answer):
    """How a text came about."""

    finish_reason: Reason = Field(description=REASON, examples=["length"])
    generated_tokens: Count = Field(description="How many tokens were generated.", examples=[1])
    seed: Count | None = Field(description=SEED, examples=[42])
    prefill: list[PrefillToken] = Field(
        description="The tokens of the prompt, if `decoder_input_details` asked for them.",
        examples=[[{"id": 42, "text": "My", "logprob": None}]],
    )
    tokens: list[Token] = Field(description="The generated tokens.", examples=[[_TOKEN]])
    top_tokens: list[list[Token]] = Field(
        default=[],
        description="For each generated token the most probable ones, if `top_n_tokens` asked for them.",
        examples=[[[_TOKEN]]],
    )


class BestOfSequence(Sequence):
    """A text that was not the best."""

    generated_text: str = Field(description="The text.", examples=[" am a writer"])


class Details(Sequence):
    """How the best text came about."""

    best_of_sequences: list[BestOfSequence] = Field(
        default=[],
        description="The other texts, if `best_of` asked for several.",
        examples=[[{**_SEQUENCE, "generated_text": " am"}]],
    )


class GenerateResponse(Answer):
    """The answer to a native request."""

    generated_text: str = Field(description="The text.", examples=[" am a photographer"])
    details: Details | None = Field(
        default=None, description="How it came about, if `details` or `decoder_input_details` asked for it.", examples=[_SEQUENCE]
    )


class StreamDetails(Answer):
    """How a streamed text came about."""

    finish_reason: Reason = Field(description=REASON, examples=["length"])
    generated_tokens: Count = Field(description="How many tokens were generated.", examples=[1])
    seed: Count | None = Field(description=SEED, examples=[42])
    input_length: Count = Field(description="How many tokens the prompt has.", examples=[7])


class StreamResponse(Answer):
    """An event of a native stream."""

    index: Count = Field(description="The token's place in the text; the first is 1.", examples=[1])
    token: Token = Field(description="The token.", examples=[_TOKEN])
    top_tokens: list[Token] = Field(
        default=[], description="The most probable tokens at its place, if `top_n_tokens` asked for them.", examples=[[_TOKEN]]
    )
    generated_text: str | None = Field(
        description="With the last token the whole text, else null.", examples=[" am a photographer"]
    )
    details: StreamDetails | None = Field(
        description="With the last token how the text came about, if `details` asked for it; else null.",
        examples=[{"finish_reason": "length", "generated_tokens": 1, "seed": 42, "input_length": 7}],
    )


class ErrorResponse(Answer):
    """TGI's error object."""

    error: str = Field(description="What went wrong.", examples=["Input validation error: `inputs` cannot be empty"])
    error_type: str = Field(
        description="The kind of error: `validation`, `overloaded`, `generation`, `incomplete_generation`, `template_error`, "
        "`tool_error`, `timeout`, `unavailable`, `healthcheck` and others.",
        examples=["validation"],
    )


class SimpleToken(Answer):
    """A token and the bytes of the input that it covers."""

    id: Count = Field(description="Its id in the model's vocabulary.", examples=[42])
    text: str = Field(description="The part of the input that it covers.", examples=["My"])
    start: Count = Field(description="Where it begins, in bytes of UTF-8.", examples=[0])
    stop: Count = Field(description="Where it ends: the next byte after it.", examples=[2])


_SIMPLE = {"id": 42, "text": "My", "start": 0, "stop": 2}


class ChatTokenizeResponse(Answer):
    """A conversation as the model would read it."""

    tokenize_response: list[SimpleToken] = Field(description="The tokens of the prompt.", examples=[[_SIMPLE]])
    templated_text: str = Field(
        description="The prompt that the chat template makes of the conversation.",
        examples=["<|user|>What is Deep Learning?<|end|>"],
    )


class PrefixCaching(Answer):
    """Whether equal beginnings of prompts are computed once, and how often that was so."""

    enabled: bool = Field(description="Whether they are.", examples=[True])
    query_tokens: Count = Field(
        description="Tokens of prompts that were looked for in the cache since the start.", examples=[2048]
    )
    hit_tokens: Count = Field(description="Those of them that were found.", examples=[1024])


class KernelInfo(Answer):
    """How a part of the model's work is done on this machine, and why so."""

    part: str = Field(description="The part.", examples=["attention"])
    name: str = Field(description="The implementation that was chosen.", examples=["native"])
    reason: str = Field(description="Why it was chosen, and why others were not.", examples=["AVX-512"])


_CACHING = {"enabled": True, "query_tokens": 2048, "hit_tokens": 1024}


class Info(Answer):
    """The model and the limits."""

    model_id: str = Field(description="The model's name.", examples=["bigscience/bloom-560m"])
    model_sha: str | None = Field(
        description="The commit of its repository, if it came from the hub.",
        examples=["e985a63cdc139290c5f700ff1929f0b5942cced2"],
    )
    model_pipeline_tag: str | None = Field(description="Always null; TGI has the hub's tag here.", examples=[None])
    max_concurrent_requests: Count = Field(
        description="How many requests may be underway at once; more are refused.", examples=[128]
    )
    max_best_of: Count = Field(description="The largest `best_of`.", examples=[2])
    max_stop_sequences: Count = Field(description="The most strings in `stop`.", examples=[4])
    max_input_tokens: Count = Field(description="The most tokens of a prompt.", examples=[1024])
    max_total_tokens: Count = Field(description="The most tokens of a prompt and its answer together.", examples=[2048])
    validation_workers: Count = Field(description="How many workers tokenize and check requests.", examples=[2])
    max_client_batch_size: Count = Field(description="The most prompts in one request.", examples=[4])
    router: str = Field(
        description="Always `text-generation-router`, which clients look for.", examples=["text-generation-router"]
    )
    version: str = Field(description="The version of tgi-core.", examples=["0.1.0"])
    sha: str | None = Field(description="Always null; TGI has the commit of its build here.", examples=[None])
    docker_label: str | None = Field(description="Always null; TGI has the name of its image here.", examples=[None])
    prefix_caching: PrefixCaching = Field(description="How the prefix cache does.", examples=[_CACHING])
    kernels: list[KernelInfo] = Field(
        description="How each part of the model's work is done, if the backend tells.",
        examples=[[{"part": "attention", "name": "native", "reason": "AVX-512"}]],
    )
    adapters: list[str] = Field(
        default=[], description="The names of the LoRA adapters, if there are any.", examples=[["my-adapter"]]
    )


class WorkDone(Answer):
    """How far slow work has come."""

    what: str = Field(description="The work.", examples=["download"])
    done: Count = Field(description="How much is done.", examples=[3])
    total: Count = Field(description="How much there is.", examples=[10])
    unit: str = Field(description="What is counted.", examples=["files"])


class State(Answer):
    """The phase of a server's life."""

    phase: Literal["starting", "serving", "restarting", "draining", "failed"] = Field(
        description="`starting`: the model is being loaded; `serving`: requests are answered; `restarting`: the shard was lost and "
        "comes back; `draining`: the server ends once running requests are answered; `failed`: it cannot go on.",
        examples=["serving"],
    )
    reason: str | None = Field(default=None, description="Why, if there is more to say.", examples=["the model is loading"])
    progress: WorkDone | None = Field(
        default=None,
        description="How far slow work has come, if some is underway.",
        examples=[{"what": "download", "done": 3, "total": 10, "unit": "files"}],
    )


class VertexResponse(Answer):
    """One text per instance."""

    predictions: list[str] = Field(description="The texts, in the order of the instances.", examples=[[" am a photographer"]])


class Live(Answer):
    """KServe's answer to probes."""

    live: bool = Field(description="Always true; the status is 503 otherwise.", examples=[True])


class Metadata(Answer):
    """KServe's description of a server or a model."""

    name: str = Field(description="The server's name, or the model's as the path has it.", examples=["text-generation-inference"])
    version: str = Field(description="The version of tgi-core, or the model's as the path has it.", examples=["0.1.0"])
    extensions: list[str] = Field(description="What it can do.", examples=[["health", "models", "metrics"]])


class InferOutput(Answer):
    """A text, as bytes or as it is."""

    name: str = Field(description="The name that was asked for.", examples=["text"])
    shape: list[Count] = Field(description="The shape of `data`.", examples=[[1, 1]])
    datatype: Literal["BYTES"] = Field(description="The type of `data`.", examples=["BYTES"])
    data: list[Annotated[int, Field(ge=0, le=255)]] | list[str] = Field(
        description="The text: as bytes of UTF-8 if its input came so, else as one string.", examples=[[" am a photographer"]]
    )


class InferResponse(Answer):
    """KServe's answer to an inference."""

    id: str | None = Field(description="The request's `id`.", examples=["42"])
    outputs: list[InferOutput] = Field(
        description="The texts, in the order of the inputs.",
        examples=[[{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [" am a photographer"]}]],
    )


NativeEvents = StreamResponse | ErrorResponse
