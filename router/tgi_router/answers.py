"""Response models, for the OpenAPI document and for tests, which validate rendered responses against them.

The handlers render responses field by field, which is faster and keeps TGI's order of fields. They do not use these models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Logprob = float | None
"""None means minus infinity, which JSON cannot represent."""
Reason = Literal["length", "eos_token", "stop_sequence"]

LOGPROB = "Log probability of the token; null for minus infinity and for the first token of a prompt."
REASON = (
    "Why generation ended. `length`: the token limit of the request or of the server was reached; `eos_token`: the model generated "
    "its end-of-sequence token; `stop_sequence`: a stop string matched."
)
SEED = "Seed of the random number generator; null if decoding was greedy."


class Answer(BaseModel):
    """Base of all response models. They forbid fields that are not listed."""

    model_config = ConfigDict(extra="forbid")


class Token(Answer):
    """A generated token."""

    id: Count = Field(description="Token id in the model's vocabulary.", examples=[42])
    text: str = Field(description="Text of the token.", examples=[" am"])
    logprob: Logprob = Field(description="Log probability of the token; null for minus infinity.", examples=[-0.34])
    special: bool = Field(description="Whether it is a special token, such as an end-of-turn marker.", examples=[False])


class PrefillToken(Answer):
    """A token of the prompt."""

    id: Count = Field(description="Token id in the model's vocabulary.", examples=[42])
    text: str = Field(description="Text of the token.", examples=["My"])
    logprob: Logprob = Field(description=LOGPROB, examples=[-0.34])


_TOKEN = {"id": 42, "text": " am", "logprob": -0.34, "special": False}
_SEQUENCE = {"finish_reason": "length", "generated_tokens": 1, "seed": 42, "prefill": [], "tokens": [_TOKEN]}


class Sequence(Answer):
    """Details of one generated text."""

    finish_reason: Reason = Field(description=REASON, examples=["length"])
    generated_tokens: Count = Field(description="Number of generated tokens.", examples=[1])
    seed: Count | None = Field(description=SEED, examples=[42])
    prefill: list[PrefillToken] = Field(
        description="The tokens of the prompt, if `decoder_input_details` was set.",
        examples=[[{"id": 42, "text": "My", "logprob": None}]],
    )
    tokens: list[Token] = Field(description="The generated tokens.", examples=[[_TOKEN]])
    top_tokens: list[list[Token]] = Field(
        default=[],
        description="The most probable tokens at the position of each generated token, if `top_n_tokens` was set.",
        examples=[[[_TOKEN]]],
    )


class BestOfSequence(Sequence):
    """A generated text that `best_of` did not select."""

    generated_text: str = Field(description="The generated text.", examples=[" am a writer"])


class Details(Sequence):
    """Details of the selected text."""

    best_of_sequences: list[BestOfSequence] = Field(
        default=[],
        description="The other texts, if `best_of` was above 1.",
        examples=[[{**_SEQUENCE, "generated_text": " am"}]],
    )


class GenerateResponse(Answer):
    """Response of a native request."""

    generated_text: str = Field(description="The generated text.", examples=[" am a photographer"])
    details: Details | None = Field(
        default=None,
        description="Details of the generation, if `details` or `decoder_input_details` was set.",
        examples=[_SEQUENCE],
    )


class StreamDetails(Answer):
    """Details of a streamed text."""

    finish_reason: Reason = Field(description=REASON, examples=["length"])
    generated_tokens: Count = Field(description="Number of generated tokens.", examples=[1])
    seed: Count | None = Field(description=SEED, examples=[42])
    input_length: Count = Field(description="Number of tokens in the prompt.", examples=[7])


class StreamResponse(Answer):
    """An event of a native stream."""

    index: Count = Field(description="Position of the token in the text, from 1.", examples=[1])
    token: Token = Field(description="The generated token.", examples=[_TOKEN])
    top_tokens: list[Token] = Field(
        default=[], description="The most probable tokens at this position, if `top_n_tokens` was set.", examples=[[_TOKEN]]
    )
    generated_text: str | None = Field(
        description="The complete text with the last token, else null.", examples=[" am a photographer"]
    )
    details: StreamDetails | None = Field(
        description="Details of the generation with the last token, if `details` was set; else null.",
        examples=[{"finish_reason": "length", "generated_tokens": 1, "seed": 42, "input_length": 7}],
    )


class ErrorResponse(Answer):
    """TGI's error object."""

    error: str = Field(description="Error message.", examples=["Input validation error: `inputs` cannot be empty"])
    error_type: str = Field(
        description="Type of the error: `validation`, `overloaded`, `generation`, `incomplete_generation`, `template_error`, "
        "`tool_error`, `timeout`, `unavailable`, `healthcheck` and others.",
        examples=["validation"],
    )


class SimpleToken(Answer):
    """A token with its range of bytes in the input."""

    id: Count = Field(description="Token id in the model's vocabulary.", examples=[42])
    text: str = Field(description="Text of the input that the token covers.", examples=["My"])
    start: Count = Field(description="Offset of the token's first byte in the UTF-8 encoded input.", examples=[0])
    stop: Count = Field(description="Offset of the first byte after the token.", examples=[2])


_SIMPLE = {"id": 42, "text": "My", "start": 0, "stop": 2}


class ChatTokenizeResponse(Answer):
    """A chat as rendered and tokenized for the model."""

    tokenize_response: list[SimpleToken] = Field(description="Tokens of the prompt.", examples=[[_SIMPLE]])
    templated_text: str = Field(
        description="The prompt that the chat template renders.",
        examples=["<|user|>What is Deep Learning?<|end|>"],
    )


class PrefixCaching(Answer):
    """State of the prefix cache, which reuses the computation of shared prompt prefixes."""

    enabled: bool = Field(description="Whether prefix caching is enabled.", examples=[True])
    query_tokens: Count = Field(description="Number of prompt tokens looked up in the cache since the start.", examples=[2048])
    hit_tokens: Count = Field(description="Number of those tokens that were found.", examples=[1024])


class KernelInfo(Answer):
    """The kernel selected for a part of the model on this machine, and why."""

    part: str = Field(description="Part of the model.", examples=["attention"])
    name: str = Field(description="Name of the selected implementation.", examples=["native"])
    reason: str = Field(description="Why this implementation was selected, and why others were not.", examples=["AVX-512"])


_CACHING = {"enabled": True, "query_tokens": 2048, "hit_tokens": 1024}


class ReplicaInfo(Answer):
    """State of one of several shards behind the server."""

    phase: Literal["serving", "restarting", "parked", "failed"] = Field(
        description="Whether it serves. Parked: not until needed.", examples=["serving"]
    )
    queued: Count = Field(description="Number of waiting requests.", examples=[0])
    running: Count = Field(description="Number of requests in the batch.", examples=[3])
    kv_blocks_used: Count = Field(description="Number of KV cache blocks in use by requests.", examples=[40])
    kv_blocks_capacity: Count = Field(description="Number of KV cache blocks.", examples=[4096])
    query_tokens: Count = Field(description="Number of tokens looked up in its prefix cache.", examples=[2048])
    hit_tokens: Count = Field(description="Number of tokens found there.", examples=[1024])
    placed_requests: Count = Field(description="Number of requests that it was given.", examples=[17])
    moved_requests: Count = Field(description="Number of requests that other replicas took over from it.", examples=[2])
    losses: Count = Field(description="Number of times that its shard was lost or replaced.", examples=[1])


_REPLICA = {
    "phase": "serving",
    "queued": 0,
    "running": 3,
    "kv_blocks_used": 40,
    "kv_blocks_capacity": 4096,
    "query_tokens": 2048,
    "hit_tokens": 1024,
    "placed_requests": 17,
    "moved_requests": 2,
    "losses": 1,
}


class Info(Answer):
    """The served model, the limits of requests and the kernels in use."""

    model_id: str = Field(description="Name of the model.", examples=["bigscience/bloom-560m"])
    model_sha: str | None = Field(
        description="Commit of the model's repository, if it came from the Hugging Face Hub.",
        examples=["e985a63cdc139290c5f700ff1929f0b5942cced2"],
    )
    model_pipeline_tag: str | None = Field(
        description="`text2text-generation` for encoder-decoders, else null; in TGI the pipeline tag from the Hub.",
        examples=[None],
    )
    max_concurrent_requests: Count = Field(
        description="Maximum number of concurrent requests; further ones are rejected.", examples=[128]
    )
    max_best_of: Count = Field(description="Maximum value of `best_of`.", examples=[2])
    max_stop_sequences: Count = Field(description="Maximum number of strings in `stop`.", examples=[4])
    max_input_tokens: Count = Field(description="Maximum number of tokens in a prompt.", examples=[1024])
    max_total_tokens: Count = Field(
        description="Maximum number of tokens in a prompt and its generated text together.", examples=[2048]
    )
    validation_workers: Count = Field(description="Number of workers that tokenize and validate requests.", examples=[2])
    max_client_batch_size: Count = Field(description="Maximum number of prompts in one request.", examples=[4])
    router: str = Field(description="Always `text-generation-router`, which clients check.", examples=["text-generation-router"])
    version: str = Field(description="Version of tgi-core.", examples=["0.1.0"])
    sha: str | None = Field(description="Always null; in TGI the commit of its build.", examples=[None])
    docker_label: str | None = Field(description="Always null; in TGI the label of its image.", examples=[None])
    prefix_caching: PrefixCaching = Field(description="State of the prefix cache.", examples=[_CACHING])
    kernels: list[KernelInfo] = Field(
        description="The kernel of each part of the model, if the backend reports them.",
        examples=[[{"part": "attention", "name": "native", "reason": "AVX-512"}]],
    )
    adapters: list[str] = Field(
        default=[], description="Names of the LoRA adapters, if there are any.", examples=[["my-adapter"]]
    )
    replicas: list[ReplicaInfo] = Field(
        default=[], description="State of each replica, if there are several.", examples=[[_REPLICA]]
    )


class TaskProgress(Answer):
    """Progress of a slow operation."""

    what: str = Field(description="Name of the operation.", examples=["download"])
    done: Count = Field(description="Amount completed.", examples=[3])
    total: Count = Field(description="Total amount.", examples=[10])
    unit: str = Field(description="Unit of the amounts.", examples=["files"])


class State(Answer):
    """Phase of the server's lifecycle."""

    phase: Literal["starting", "serving", "restarting", "draining", "failed"] = Field(
        description="`starting`: the model is being loaded; `serving`: requests are accepted; `restarting`: the shard was lost and "
        "is being restarted; `draining`: the server exits once running requests finish; `failed`: it cannot recover.",
        examples=["serving"],
    )
    reason: str | None = Field(default=None, description="Reason for the phase, if known.", examples=["the model is loading"])
    progress: TaskProgress | None = Field(
        default=None,
        description="Progress of a slow operation, if one is running.",
        examples=[{"what": "download", "done": 3, "total": 10, "unit": "files"}],
    )


class VertexResponse(Answer):
    """Vertex AI's response: one text per instance."""

    predictions: list[str] = Field(
        description="The generated texts, in the order of the instances.", examples=[[" am a photographer"]]
    )


class Live(Answer):
    """KServe's response to probes."""

    live: bool = Field(description="Always true; if the server is not ready, the status is 503 instead.", examples=[True])


class Metadata(Answer):
    """KServe's metadata of the server or of a model."""

    name: str = Field(description="Name of the server, or the model name from the path.", examples=["text-generation-inference"])
    version: str = Field(description="Version of tgi-core, or the model version from the path.", examples=["0.1.0"])
    extensions: list[str] = Field(description="Supported protocol extensions.", examples=[["health", "models", "metrics"]])


class InferOutput(Answer):
    """A generated text, as a string or as bytes."""

    name: str = Field(description="Name of the output, from the request.", examples=["text"])
    shape: list[Count] = Field(description="Shape of `data`.", examples=[[1, 1]])
    datatype: Literal["BYTES"] = Field(description="Type of `data`.", examples=["BYTES"])
    data: list[Annotated[int, Field(ge=0, le=255)]] | list[str] = Field(
        description="The generated text: UTF-8 bytes as numbers if the input was given as such, else one string.",
        examples=[[" am a photographer"]],
    )


class InferResponse(Answer):
    """KServe's inference response."""

    id: str | None = Field(description="Identifier of the request.", examples=["42"])
    outputs: list[InferOutput] = Field(
        description="The generated texts, in the order of the inputs.",
        examples=[[{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [" am a photographer"]}]],
    )


NativeEvents = StreamResponse | ErrorResponse
