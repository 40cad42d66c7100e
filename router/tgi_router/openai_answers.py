"""What the routes under /v1 answer, for the OpenAPI document. The handlers render it themselves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tgi_router.answers import Answer, Count, Logprob

ChatReason = Literal["stop", "length", "tool_calls", "stop_sequence"]

_REASON = (
    "Why the answer ended: `stop`: the model ended it, or a string of `stop` came; `length`: it has as many tokens as were asked for or "
    "as there is room for; `tool_calls`: it is a call. With `--strict-tgi` strings of `stop` are told as `stop_sequence`."
)
_ID = "A name for this answer."
_CREATED = "When the answer was begun, in seconds since 1970."
_MODEL = "The model's name as the request has it, or as it is served."
_FINGERPRINT = "The version of the server."


class OpenAIErrorBody(Answer):
    """What went wrong, for OpenAI's clients."""

    message: str = Field(description="What went wrong.", examples=["Input validation error: `inputs` cannot be empty"])
    type: str = Field(description="OpenAI's kind of error.", examples=["invalid_request_error"])
    param: None = Field(description="Always null.", examples=[None])
    code: str = Field(description="TGI's kind of error, or OpenAI's code for it.", examples=["validation"])
    http_status_code: Count | None = Field(
        default=None, description="The status that the error would have had; inside of streams only.", examples=[422]
    )


class OpenAIErrorResponse(Answer):
    """OpenAI's error object, with TGI's type."""

    error: OpenAIErrorBody = Field(
        description="The error.",
        examples=[{"message": "Model is overloaded", "type": "rate_limit_error", "param": None, "code": "overloaded"}],
    )
    error_type: str = Field(description="TGI's kind of error.", examples=["overloaded"])


class StreamErrorBody(Answer):
    """What went wrong, as TGI tells it inside of a stream."""

    message: str = Field(description="What went wrong.", examples=["Model is overloaded"])
    http_status_code: Count = Field(description="The status that the error would have had.", examples=[429])


class StreamError(Answer):
    """TGI's event for an error in a stream of OpenAI's routes."""

    error: StreamErrorBody = Field(
        description="The error.", examples=[{"message": "Model is overloaded", "http_status_code": 429}]
    )


class PromptTokensDetails(Answer):
    """Where the tokens of a prompt came from."""

    cached_tokens: Count = Field(description="Those that the prefix cache had.", examples=[0])


_USAGE = {"prompt_tokens": 7, "completion_tokens": 32, "total_tokens": 39, "prompt_tokens_details": {"cached_tokens": 0}}


class Usage(Answer):
    """Tokens that were read and written."""

    prompt_tokens: Count = Field(description="Tokens of the prompts.", examples=[7])
    completion_tokens: Count = Field(description="Tokens that were generated.", examples=[32])
    total_tokens: Count = Field(description="Both together.", examples=[39])
    prompt_tokens_details: PromptTokensDetails = Field(
        description="Where the tokens of the prompts came from.", examples=[{"cached_tokens": 0}]
    )


_FUNCTION = {"name": "weather", "arguments": '{"city":"Paris"}'}
_CALL = {"id": "call_1", "type": "function", "function": _FUNCTION}


class Function(Answer):
    """What a tool call calls."""

    name: str = Field(description="The function's name.", examples=["weather"])
    arguments: str = Field(description="Its arguments as JSON text.", examples=['{"city":"Paris"}'])
    description: None = Field(default=None, description="Null, and only with `--strict-tgi`.", examples=[None])


class ToolCall(Answer):
    """A tool call."""

    id: str = Field(description="A name for the call, to answer it by.", examples=["call_1"])
    type: Literal["function"] = Field(description="What is called.", examples=["function"])
    function: Function = Field(description="The function and its arguments.", examples=[_FUNCTION])


class OutputMessage(Answer):
    """What the assistant said or calls."""

    role: Literal["assistant"] = Field(description="Who speaks.", examples=["assistant"])
    content: str | None = Field(default=None, description="What is said; null if there are calls only.", examples=["A kind of"])
    tool_calls: list[ToolCall] = Field(default=[], description="The tools to call, if there are any.", examples=[[_CALL]])


class TopLogprob(Answer):
    """A likely token at a place."""

    token: str = Field(description="The token's text.", examples=[" kind"])
    logprob: Logprob = Field(description="Its log probability; null for minus infinity.", examples=[-0.34])
    bytes: list[Count] = Field(default=[], description="Its text in UTF-8.", examples=[[32, 107, 105, 110, 100]])


_TOP = {"token": " kind", "logprob": -0.34, "bytes": [32, 107, 105, 110, 100]}


class ChatLogprob(TopLogprob):
    """A generated token and its rivals."""

    top_logprobs: list[TopLogprob] = Field(
        description="The most probable tokens at its place, if `top_logprobs` asked for them.", examples=[[_TOP]]
    )


_LOGPROBS = {"content": [{**_TOP, "top_logprobs": [_TOP]}]}


class ChatLogprobs(Answer):
    """Log probabilities of an answer."""

    content: list[ChatLogprob] = Field(description="One entry per token.", examples=[_LOGPROBS["content"]])


class ChatCompletionComplete(Answer):
    """One choice of an answer."""

    index: Count = Field(description="Its place among the choices; the first is 0.", examples=[0])
    message: OutputMessage = Field(description="The answer.", examples=[{"role": "assistant", "content": "A kind of"}])
    logprobs: ChatLogprobs | None = Field(description="Log probabilities, if `logprobs` asked for them.", examples=[_LOGPROBS])
    finish_reason: ChatReason = Field(description=_REASON, examples=["stop"])


class ChatCompletion(Answer):
    """The answer to a conversation."""

    object: Literal["chat.completion"] = Field(description="What this is.", examples=["chat.completion"])
    id: str = Field(description=_ID, examples=["chatcmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270835])
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])
    choices: list[ChatCompletionComplete] = Field(
        description="The answers: `n` of them.",
        examples=[
            [{"index": 0, "message": {"role": "assistant", "content": "A kind of"}, "logprobs": None, "finish_reason": "stop"}]
        ],
    )
    usage: Usage = Field(description="How many tokens were read and written.", examples=[_USAGE])


class DeltaFunction(Answer):
    """A part of what a tool call calls."""

    name: str | None = Field(default=None, description="The function's name, in a call's first part.", examples=["weather"])
    arguments: str = Field(description="What comes next of its arguments as JSON text.", examples=['{"city"'])


class DeltaToolCall(Answer):
    """A part of a tool call."""

    index: Count = Field(description="The call's place among the calls; the first is 0.", examples=[0])
    id: str | None = Field(default=None, description="The call's name, in its first part.", examples=["call_1"])
    type: Literal["function"] | None = Field(
        default=None, description="What is called, in its first part.", examples=["function"]
    )
    function: DeltaFunction = Field(description="The function, or a part of its arguments.", examples=[{"arguments": '{"city"'}])


class Delta(Answer):
    """What a chunk adds."""

    role: Literal["assistant"] | None = Field(default=None, description="Who speaks.", examples=["assistant"])
    content: str | None = Field(default=None, description="What comes next of what is said.", examples=[" kind"])
    tool_calls: list[DeltaToolCall] = Field(
        default=[],
        description="What comes next of the calls.",
        examples=[[{"index": 0, "function": {"arguments": '{"city"'}}]],
    )


class ChatCompletionChoice(Answer):
    """What a chunk adds to a choice."""

    index: Count = Field(description="The choice's place among the choices; the first is 0.", examples=[0])
    delta: Delta = Field(description="What is new.", examples=[{"role": "assistant", "content": " kind"}])
    logprobs: ChatLogprobs | None = Field(
        description="Log probabilities of what is new, if `logprobs` asked for them.", examples=[_LOGPROBS]
    )
    finish_reason: ChatReason | None = Field(description=f"{_REASON} Null until then.", examples=["stop"])


class ChatCompletionChunk(Answer):
    """An event of a streamed chat."""

    object: Literal["chat.completion.chunk"] = Field(description="What this is.", examples=["chat.completion.chunk"])
    id: str = Field(description=_ID, examples=["chatcmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270978])
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])
    choices: list[ChatCompletionChoice] = Field(
        description="What is new; nothing in the chunk that tells the usage.",
        examples=[[{"index": 0, "delta": {"role": "assistant", "content": " kind"}, "logprobs": None, "finish_reason": None}]],
    )
    usage: Usage | None = Field(
        description="How many tokens were read and written, in the last chunk, if `stream_options` asked for it; else null.",
        examples=[_USAGE],
    )


class CompletionLogprobs(Answer):
    """Log probabilities of a text's tokens, and where in it they begin."""

    tokens: list[str] = Field(description="The tokens' texts.", examples=[[" am"]])
    token_logprobs: list[Logprob] = Field(description="Their log probabilities.", examples=[[-0.34]])
    top_logprobs: list[dict[str, Logprob]] | None = Field(
        description="For each token the most probable ones at its place.", examples=[[{" am": -0.34}]]
    )
    text_offset: list[Count] = Field(description="Where in the text each token begins, in characters.", examples=[[0]])


_CHOICE = {"index": 0, "text": " am", "logprobs": None, "finish_reason": "stop"}


class CompletionComplete(Answer):
    """One text."""

    index: Count = Field(description="Its place among the texts; the first is 0.", examples=[0])
    text: str = Field(description="The text, or in a stream what comes next of it.", examples=[" am a photographer"])
    logprobs: CompletionLogprobs | None = Field(
        description="Log probabilities, if `logprobs` asked for them.",
        examples=[{"tokens": [" am"], "token_logprobs": [-0.34], "top_logprobs": None, "text_offset": [0]}],
    )
    finish_reason: str | None = Field(
        description="Why the text ended: `stop` or `length`; in a stream null until then.", examples=["stop"]
    )


class CompletionFinal(Answer):
    """Texts with what they cost."""

    object: Literal["text_completion"] = Field(description="What this is.", examples=["text_completion"])
    id: str = Field(description=_ID, examples=["cmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270835])
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])
    choices: list[CompletionComplete] = Field(description="The texts: `n` for each prompt.", examples=[[_CHOICE]])
    usage: Usage = Field(description="How many tokens were read and written.", examples=[_USAGE])


class Chunk(Answer):
    """An event of streamed texts; the last one of each text is a `CompletionFinal`."""

    object: Literal["text_completion"] = Field(description="What this is.", examples=["text_completion"])
    id: str = Field(description=_ID, examples=["cmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270835])
    choices: list[CompletionComplete] = Field(
        description="What is new.", examples=[[{"index": 0, "text": " am", "logprobs": None, "finish_reason": None}]]
    )
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])


class ModelInfo(Answer):
    """A model."""

    id: str = Field(description="Its name, to ask for it by.", examples=["gpt2"])
    object: Literal["model"] = Field(description="What this is.", examples=["model"])
    created: Count = Field(description="Always 0.", examples=[0])
    owned_by: str = Field(description="The name of the model that is served; an adapter belongs to it.", examples=["gpt2"])


class ModelsInfo(Answer):
    """OpenAI's list of models."""

    object: Literal["list"] = Field(description="What this is.", examples=["list"])
    data: list[ModelInfo] = Field(
        description="The model that is served, and its adapters.",
        examples=[[{"id": "gpt2", "object": "model", "created": 0, "owned_by": "gpt2"}]],
    )


ChatEvents = ChatCompletionChunk | OpenAIErrorResponse | StreamError
CompletionEvents = Chunk | CompletionFinal | OpenAIErrorResponse | StreamError
