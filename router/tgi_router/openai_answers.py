"""Response models of the routes under /v1, for the OpenAPI document only: the handlers render the JSON themselves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tgi_router.answers import Answer, Count, Logprob

ChatReason = Literal["stop", "length", "tool_calls", "stop_sequence"]

_REASON = (
    "Why generation ended. `stop`: the model ended its turn, or a stop string matched; `length`: the token limit of the request or "
    "of the server was reached; `tool_calls`: the model called a tool; `stop_sequence`: a stop string matched, with `--strict-tgi`."
)
_ID = "Unique identifier of the response; empty with `--strict-tgi`."
_CREATED = "Unix timestamp of the start of the response, in seconds."
_MODEL = "Name of the model: as given in the request, else the name under which it is served."
_FINGERPRINT = "Version of the server."


class OpenAIErrorBody(Answer):
    """Details of an error, in OpenAI's format."""

    message: str = Field(description="Error message.", examples=["Input validation error: `inputs` cannot be empty"])
    type: str = Field(description="OpenAI's type of the error.", examples=["invalid_request_error"])
    param: None = Field(description="Always null.", examples=[None])
    code: str = Field(description="OpenAI's code of the error if there is one, else TGI's error type.", examples=["validation"])
    http_status_code: Count | None = Field(
        default=None, description="HTTP status that the error would have had; within streams only.", examples=[422]
    )


class OpenAIErrorResponse(Answer):
    """OpenAI's error object, with TGI's error type added."""

    error: OpenAIErrorBody = Field(
        description="Details of the error.",
        examples=[{"message": "Model is overloaded", "type": "rate_limit_error", "param": None, "code": "overloaded"}],
    )
    error_type: str = Field(description="TGI's type of the error.", examples=["overloaded"])


class StreamErrorBody(Answer):
    """Details of an error within a stream, in TGI's format."""

    message: str = Field(description="Error message.", examples=["Model is overloaded"])
    http_status_code: Count = Field(description="HTTP status that the error would have had.", examples=[429])


class StreamError(Answer):
    """TGI's error event in a stream of OpenAI's routes."""

    error: StreamErrorBody = Field(
        description="Details of the error.", examples=[{"message": "Model is overloaded", "http_status_code": 429}]
    )


class PromptTokensDetails(Answer):
    """Breakdown of prompt tokens by their source."""

    cached_tokens: Count = Field(description="Prompt tokens that were found in the prefix cache.", examples=[0])


class CompletionTokensDetails(Answer):
    """Use that was made of a prediction."""

    accepted_prediction_tokens: Count = Field(
        description="Tokens of the prediction that were drafted and accepted.", examples=[0]
    )
    rejected_prediction_tokens: Count = Field(
        description="Tokens of the prediction that were drafted and not accepted. They are no `completion_tokens`.", examples=[0]
    )


_USAGE = {"prompt_tokens": 7, "completion_tokens": 32, "total_tokens": 39, "prompt_tokens_details": {"cached_tokens": 0}}


class Usage(Answer):
    """Token usage of a request."""

    prompt_tokens: Count = Field(description="Number of tokens in the prompts.", examples=[7])
    completion_tokens: Count = Field(description="Number of generated tokens.", examples=[32])
    total_tokens: Count = Field(description="Number of prompt tokens and generated tokens together.", examples=[39])
    prompt_tokens_details: PromptTokensDetails = Field(
        description="Breakdown of the prompt tokens.", examples=[{"cached_tokens": 0}]
    )
    completion_tokens_details: CompletionTokensDetails | None = Field(
        default=None,
        description="Only with a `prediction` from which tokens could be drafted.",
        examples=[{"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}],
    )


_FUNCTION = {"name": "weather", "arguments": '{"city":"Paris"}'}
_CALL = {"id": "call_1", "type": "function", "function": _FUNCTION}


class Function(Answer):
    """The function that a tool call invokes."""

    name: str = Field(description="Name of the function.", examples=["weather"])
    arguments: str = Field(description="Arguments of the function, as JSON text.", examples=['{"city":"Paris"}'])
    description: None = Field(default=None, description="Null, and only with `--strict-tgi`.", examples=[None])


class ToolCall(Answer):
    """A tool call."""

    id: str = Field(description="Identifier of the call; the tool's result refers to it as `tool_call_id`.", examples=["call_1"])
    type: Literal["function"] = Field(description="Type of the tool.", examples=["function"])
    function: Function = Field(description="The function and its arguments.", examples=[_FUNCTION])


class OutputMessage(Answer):
    """The assistant's message."""

    role: Literal["assistant"] = Field(description="Author of the message.", examples=["assistant"])
    content: str | None = Field(
        default=None, description="Text of the message; null if it has tool calls only.", examples=["A kind of"]
    )
    tool_calls: list[ToolCall] = Field(default=[], description="Tool calls of the message, if any.", examples=[[_CALL]])


class TopLogprob(Answer):
    """A candidate token at one position, with its log probability."""

    token: str = Field(description="Text of the token.", examples=[" kind"])
    logprob: Logprob = Field(description="Log probability of the token; null for minus infinity.", examples=[-0.34])
    bytes: list[Count] = Field(default=[], description="UTF-8 bytes of the token's text.", examples=[[32, 107, 105, 110, 100]])


_TOP = {"token": " kind", "logprob": -0.34, "bytes": [32, 107, 105, 110, 100]}


class ChatLogprob(TopLogprob):
    """A generated token, with the most probable tokens at its position."""

    top_logprobs: list[TopLogprob] = Field(
        description="The most probable tokens at this position, if `top_logprobs` was set.", examples=[[_TOP]]
    )


_LOGPROBS = {"content": [{**_TOP, "top_logprobs": [_TOP]}]}


class ChatLogprobs(Answer):
    """Log probabilities of a message's tokens."""

    content: list[ChatLogprob] = Field(description="One entry per token.", examples=[_LOGPROBS["content"]])


class ChatCompletionComplete(Answer):
    """One choice of a chat completion."""

    index: Count = Field(description="Index of the choice, from 0.", examples=[0])
    message: OutputMessage = Field(description="The generated message.", examples=[{"role": "assistant", "content": "A kind of"}])
    logprobs: ChatLogprobs | None = Field(
        description="Log probabilities of the tokens, if `logprobs` was set.", examples=[_LOGPROBS]
    )
    finish_reason: ChatReason = Field(description=_REASON, examples=["stop"])


class PromptLogprob(Answer):
    """Log probability of a token of the prompt."""

    logprob: Logprob = Field(description="Log probability of the token; null for minus infinity.", examples=[-0.34])
    rank: None = Field(description="Always null.", examples=[None])
    decoded_token: str = Field(description="Text of the token.", examples=[" kind"])


PromptLogprobs = list[dict[str, PromptLogprob] | None]
_PROMPT = [None, {"42": {"logprob": -0.34, "rank": None, "decoded_token": " kind"}}]
_PROMPT_LOGPROBS = (
    "Log probabilities of the prompt's tokens by their ids, if `prompt_logprobs` was set; null for the first token."
)


class ChatCompletion(Answer):
    """A complete chat completion."""

    object: Literal["chat.completion"] = Field(description="Type of the object.", examples=["chat.completion"])
    id: str = Field(description=_ID, examples=["chatcmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270835])
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])
    choices: list[ChatCompletionComplete] = Field(
        description="The generated choices: `n` of them.",
        examples=[
            [{"index": 0, "message": {"role": "assistant", "content": "A kind of"}, "logprobs": None, "finish_reason": "stop"}]
        ],
    )
    usage: Usage = Field(description="Token usage of the request.", examples=[_USAGE])
    prompt_logprobs: PromptLogprobs = Field(default=[], description=_PROMPT_LOGPROBS, examples=[_PROMPT])


class DeltaFunction(Answer):
    """A part of the function that a tool call invokes."""

    name: str | None = Field(
        default=None, description="Name of the function; only in the first part of a call.", examples=["weather"]
    )
    arguments: str = Field(description="The next piece of the arguments, as JSON text.", examples=['{"city"'])


class DeltaToolCall(Answer):
    """A part of a streamed tool call."""

    index: Count = Field(description="Index of the tool call, from 0.", examples=[0])
    id: str | None = Field(default=None, description="Identifier of the call; only in its first part.", examples=["call_1"])
    type: Literal["function"] | None = Field(
        default=None, description="Type of the tool; only in the first part of a call.", examples=["function"]
    )
    function: DeltaFunction = Field(
        description="The function's name and the next piece of its arguments.", examples=[{"arguments": '{"city"'}]
    )


class Delta(Answer):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = Field(default=None, description="Author of the message.", examples=["assistant"])
    content: str | None = Field(default=None, description="The next piece of the text.", examples=[" kind"])
    tool_calls: list[DeltaToolCall] = Field(
        default=[],
        description="The next pieces of the tool calls.",
        examples=[[{"index": 0, "function": {"arguments": '{"city"'}}]],
    )


class ChatCompletionChoice(Answer):
    """A choice in a chunk of a streamed chat completion."""

    index: Count = Field(description="Index of the choice, from 0.", examples=[0])
    delta: Delta = Field(description="What the chunk adds to the message.", examples=[{"role": "assistant", "content": " kind"}])
    logprobs: ChatLogprobs | None = Field(
        description="Log probabilities of the chunk's tokens, if `logprobs` was set.", examples=[_LOGPROBS]
    )
    finish_reason: ChatReason | None = Field(description=f"{_REASON} Null until the choice ends.", examples=["stop"])


class ChatCompletionChunk(Answer):
    """A chunk of a streamed chat completion."""

    object: Literal["chat.completion.chunk"] = Field(description="Type of the object.", examples=["chat.completion.chunk"])
    id: str = Field(description=_ID, examples=["chatcmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270978])
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])
    choices: list[ChatCompletionChoice] = Field(
        description="The choices that the chunk extends; empty in the chunk that carries the usage.",
        examples=[[{"index": 0, "delta": {"role": "assistant", "content": " kind"}, "logprobs": None, "finish_reason": None}]],
    )
    usage: Usage | None = Field(
        description="Token usage, in the last chunk, if `stream_options.include_usage` was set; else null.",
        examples=[_USAGE],
    )


class CompletionLogprobs(Answer):
    """Log probabilities of a text's tokens, with their offsets in the text."""

    tokens: list[str] = Field(description="Texts of the tokens.", examples=[[" am"]])
    token_logprobs: list[Logprob | None] = Field(
        description="Log probabilities of the tokens; null for the first token of an echoed prompt.", examples=[[-0.34]]
    )
    top_logprobs: list[dict[str, Logprob]] | None = Field(
        description="The most probable tokens at the position of each token.", examples=[[{" am": -0.34}]]
    )
    text_offset: list[Count] = Field(description="Offset of each token in the text, in characters.", examples=[[0]])


_CHOICE = {"index": 0, "text": " am", "logprobs": None, "finish_reason": "stop"}


class CompletionComplete(Answer):
    """One choice of a text completion."""

    index: Count = Field(description="Index of the choice, from 0.", examples=[0])
    text: str = Field(description="The generated text, or the next piece of it in a stream.", examples=[" am a photographer"])
    logprobs: CompletionLogprobs | None = Field(
        description="Log probabilities of the tokens, if `logprobs` was set.",
        examples=[{"tokens": [" am"], "token_logprobs": [-0.34], "top_logprobs": None, "text_offset": [0]}],
    )
    finish_reason: str | None = Field(
        description="Why generation ended: `stop` or `length`; in a stream null until the text ends.", examples=["stop"]
    )
    prompt_logprobs: PromptLogprobs = Field(default=[], description=_PROMPT_LOGPROBS, examples=[_PROMPT])


class CompletionFinal(Answer):
    """A complete text completion, with its token usage."""

    object: Literal["text_completion"] = Field(description="Type of the object.", examples=["text_completion"])
    id: str = Field(description=_ID, examples=["cmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270835])
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])
    choices: list[CompletionComplete] = Field(description="The generated texts: `n` for each prompt.", examples=[[_CHOICE]])
    usage: Usage = Field(description="Token usage of the request.", examples=[_USAGE])


class Chunk(Answer):
    """A chunk of a streamed text completion; the last chunk of each text is a `CompletionFinal`."""

    object: Literal["text_completion"] = Field(description="Type of the object.", examples=["text_completion"])
    id: str = Field(description=_ID, examples=["cmpl-1"])
    created: Count = Field(description=_CREATED, examples=[1706270835])
    choices: list[CompletionComplete] = Field(
        description="The texts that the chunk extends.",
        examples=[[{"index": 0, "text": " am", "logprobs": None, "finish_reason": None}]],
    )
    model: str = Field(description=_MODEL, examples=["mistralai/Mistral-7B-Instruct-v0.2"])
    system_fingerprint: str = Field(description=_FINGERPRINT, examples=["0.1.0-native"])


class ModelInfo(Answer):
    """A model or a LoRA adapter."""

    id: str = Field(description="Name of the model, for the field `model` of requests.", examples=["gpt2"])
    object: Literal["model"] = Field(description="Type of the object.", examples=["model"])
    created: Count = Field(description="Always 0.", examples=[0])
    owned_by: str = Field(description="Name of the served model, also for its adapters.", examples=["gpt2"])


class ModelsInfo(Answer):
    """List of the models that are available."""

    object: Literal["list"] = Field(description="Type of the object.", examples=["list"])
    data: list[ModelInfo] = Field(
        description="The served model and its LoRA adapters.",
        examples=[[{"id": "gpt2", "object": "model", "created": 0, "owned_by": "gpt2"}]],
    )


ChatEvents = ChatCompletionChunk | OpenAIErrorResponse | StreamError
CompletionEvents = Chunk | CompletionFinal | OpenAIErrorResponse | StreamError
