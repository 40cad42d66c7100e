"""What the routes under /v1 answer, for the OpenAPI document. The handlers render it themselves."""

from __future__ import annotations

from typing import Literal

from tgi_router.answers import Answer, Logprob

ChatReason = Literal["stop", "length", "tool_calls", "stop_sequence"]


class OpenAIErrorBody(Answer):
    """What went wrong, for OpenAI's clients. `http_status_code` stands inside streams only."""

    message: str
    type: str
    param: None
    code: str
    http_status_code: int | None = None


class OpenAIErrorResponse(Answer):
    """OpenAI's error object, with TGI's type."""

    error: OpenAIErrorBody
    error_type: str


class StreamErrorBody(Answer):
    """What went wrong, as TGI tells it inside a stream."""

    message: str
    http_status_code: int


class StreamError(Answer):
    """TGI's event for an error in a stream of OpenAI's routes."""

    error: StreamErrorBody


class PromptTokensDetails(Answer):
    """Where the tokens of a prompt came from."""

    cached_tokens: int


class Usage(Answer):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Function(Answer):
    """What a tool call calls."""

    name: str
    arguments: str
    description: None = None


class ToolCall(Answer):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: Function


class OutputMessage(Answer):
    """What the assistant said or calls."""

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[ToolCall] = []


class TopLogprob(Answer):
    """A likely token at a place; `bytes` is its text in UTF-8."""

    token: str
    logprob: Logprob
    bytes: list[int] = []


class ChatLogprob(TopLogprob):
    """A generated token and its rivals."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """Logprobs of an answer."""

    content: list[ChatLogprob]


class ChatCompletionComplete(Answer):
    """One choice of an answer."""

    index: int
    message: OutputMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason


class ChatCompletion(Answer):
    """The answer to a conversation."""

    object: Literal["chat.completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionComplete]
    usage: Usage


class DeltaFunction(Answer):
    """A part of what a tool call calls."""

    name: str | None = None
    arguments: str


class DeltaToolCall(Answer):
    """A part of a tool call."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunction


class Delta(Answer):
    """What a chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[DeltaToolCall] = []


class ChatCompletionChoice(Answer):
    """What a chunk adds to a choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason | None


class ChatCompletionChunk(Answer):
    """An event of a streamed chat."""

    object: Literal["chat.completion.chunk"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChoice]
    usage: Usage | None


class CompletionLogprobs(Answer):
    """Logprobs of a text's tokens, and where in it they begin."""

    tokens: list[str]
    token_logprobs: list[Logprob]
    top_logprobs: list[dict[str, Logprob]] | None
    text_offset: list[int]


class CompletionComplete(Answer):
    """One text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class CompletionFinal(Answer):
    """Texts with what they cost."""

    object: Literal["text_completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionComplete]
    usage: Usage


class Chunk(Answer):
    """An event of streamed texts; the last one of each text is a `CompletionFinal`."""

    object: Literal["text_completion"]
    id: str
    created: int
    choices: list[CompletionComplete]
    model: str
    system_fingerprint: str


class ModelInfo(Answer):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsInfo(Answer):
    """OpenAI's list of models."""

    object: Literal["list"]
    data: list[ModelInfo]


ChatEvents = ChatCompletionChunk | OpenAIErrorResponse | StreamError
CompletionEvents = Chunk | CompletionFinal | OpenAIErrorResponse | StreamError
