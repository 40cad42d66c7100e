"""Request bodies of the routes under /v1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tgi_router.bodies import GrammarShape
from tgi_router.json_text import dumps
from tgi_router.strict_types import F32, U32, Body, ListOf, schema_keywords
from tgi_router.vllm_fields import ARGUMENTS, VllmFields

MAX_CHOICES = 16
"""Upper bound of `n`: each choice is a separate generation. OpenAI's limit of 128 would take all permits that exist by default."""


class StreamOptions(Body):
    """Options of a streamed response."""

    include_usage: bool = Field(
        default=False,
        description="Send a last chunk that has the token usage and no choices.",
        examples=[True],
    )


def _text_or_list(value: Any) -> Any:
    if value is not None and not isinstance(value, str | list):
        raise ValueError("invalid type, expected a string or a list")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(_text_or_list(value), str) else value


def _as_prompts(value: Any) -> Any:
    if value == []:
        raise ValueError("Empty array detected. Do not use an empty array for the prompt.")
    numbers = isinstance(value, list) and type(value[0]) is int
    return [value] if numbers else _as_list(value)


class OpenAIBody(VllmFields):
    """Fields common to chat and text completions. Accepts null and bare strings, as OpenAI does, where TGI's types reject them.
    `tgi_router.request_fields` says what becomes of fields that are not listed here."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(
        default=None,
        description="Name of the model or of one of its adapters; `/v1/models` lists them. Any other name selects the model itself.",
        examples=["tgi"],
    )
    max_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="Maximum number of tokens to generate. Default: as many as the server's limits allow after the prompt.",
        examples=[32],
    )
    max_completion_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None, description="OpenAI's newer name for `max_tokens`; takes precedence over it.", examples=[32]
    )
    temperature: Annotated[F32, schema_keywords(minimum=0)] | None = Field(
        default=None,
        description="Sampling temperature: low values such as 0.2 give more focused output, high values such as 0.8 more random "
        "output. With 0, decoding is greedy. Change this or `top_p`, not both. Default: 1.",
        examples=[1.0],
    )
    top_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, maximum=1)] | None = Field(
        default=None,
        description="Nucleus sampling: keep the most probable tokens that together have this probability. Default: 1, all tokens.",
        examples=[0.95],
    )
    seed: Annotated[int, Field(ge=-1, le=2**64 - 1)] | None = Field(
        default=None,
        description="Seed of the random number generator: equal requests with equal seeds sample the same tokens. -1 is none.",
        examples=[42],
    )
    stop: Annotated[ListOf[str], BeforeValidator(_as_list, str | list[str])] | None = Field(
        default=None,
        description="Stop before any of these strings. At most the server's `max_stop_sequences`, of up to 1024 characters each.",
        examples=[["\n\n"]],
    )
    frequency_penalty: Annotated[F32, schema_keywords(minimum=-2, maximum=2)] | None = Field(
        default=None,
        description="Subtracted from a token's logit for each of its occurrences; positive values reduce verbatim repetition.",
        examples=[1.0],
    )
    presence_penalty: Annotated[F32, schema_keywords(minimum=-2, maximum=2)] | None = Field(
        default=None,
        description="Subtracted from a token's logit once it has occurred; positive values encourage new topics.",
        examples=[0.1],
    )
    logit_bias: ListOf[F32] | dict[str, Any] | None = Field(
        default=None,
        description="Bias added to the logits of tokens: an object that maps token ids to numbers from -100, which practically bans "
        "a token, to 100, which practically forces it. TGI's format, a list, is accepted and ignored.",
        examples=[{"42": -100}],
    )
    n: Annotated[U32, schema_keywords(minimum=1, maximum=MAX_CHOICES)] | None = Field(
        default=None, description="Number of choices to generate. Default: 1.", examples=[1]
    )
    stream: bool | None = Field(
        default=None, description="Stream the response as server-sent events, one chunk each.", examples=[False]
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="Options of a streamed response.", examples=[{"include_usage": True}]
    )


class CompletionBody(OpenAIBody):
    """A text completion request: one or more prompts with generation parameters."""

    prompt: Annotated[ListOf[str | ListOf[U32]], BeforeValidator(_as_prompts, str | list[str] | list[U32] | list[list[U32]])] = (
        Field(
            description="The prompt, or a list of prompts, each a text or the ids of its tokens. At most the server's "
            "`max_client_batch_size`.",
            examples=["My name is Olivier and I"],
        )
    )
    suffix: str | None = Field(
        default=None,
        description="Not supported. For infilling, put the suffix into the prompt in the format of the model.",
        examples=[None],
    )
    echo: bool | None = Field(
        default=None,
        description="Prepend the prompt to the text. With `logprobs: 0`, on a server with `--enable-prefill-logprobs`, also return the "
        "log probabilities of its tokens; cannot be streamed.",
        examples=[False],
    )
    logprobs: U32 | None = Field(
        default=None,
        description="Return the log probabilities of the generated tokens, and of this many most probable tokens per position.",
        examples=[1],
    )
    best_of: U32 | None = Field(
        default=None,
        description="Generate this many texts and return the `n` most likely. At most the server's `max_best_of`. Cannot be streamed.",
        examples=[1],
    )


class ImageUrl(Body):
    """Reference to an image."""

    url: str = Field(
        description="`data:` URL of the image, in base64. Others are rejected.", examples=["data:image/png;base64,iVBORw0KGgo="]
    )


_UNSUPPORTED_PARTS = ("audio_url", "file", "input_audio", "video", "video_url")
"""Types of parts that other servers accept."""


class MessageChunk(Body):
    """A part of a message's content."""

    type: Literal["text", "image_url", "refusal"] = Field(
        description="Type of the part. Images are rejected if the model sees none.", examples=["text"]
    )
    text: str | None = Field(default=None, description="Text of a part of type `text`.", examples=["What is Deep Learning?"])
    refusal: str | None = Field(
        default=None, description="Text of a part of type `refusal`, with which the assistant refused.", examples=["I cannot."]
    )
    image_url: ImageUrl | None = Field(
        default=None, description="Image of a part of type `image_url`.", examples=[{"url": "data:image/png;base64,iVBORw0KGgo="}]
    )

    @field_validator("type", mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        if isinstance(value, str) and value in _UNSUPPORTED_PARTS:
            raise ValueError(f"parts of type `{value}` are not supported")
        return value

    @model_validator(mode="after")
    def _check_part(self) -> MessageChunk:
        if getattr(self, self.type) is None:
            raise ValueError(f"missing field `{self.type}`")
        return self


def _as_chunks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(_text_or_list(value), str) else value


class Message(Body):
    """One message of a chat: its content, or the tool calls of the assistant."""

    role: str = Field(
        description="Role of the author. The model's chat template defines the valid roles; `system`, `user`, `assistant` and "
        "`tool` are common.",
        examples=["user"],
    )
    content: Annotated[ListOf[MessageChunk], BeforeValidator(_as_chunks, str | list[MessageChunk])] | None = Field(
        default=None,
        description="Content of the message: a string, or parts that are concatenated.",
        examples=["What is Deep Learning?"],
    )
    tool_calls: ListOf[dict[str, Any]] | None = Field(
        default=None,
        description="Tool calls of the assistant, as returned in an earlier response.",
        examples=[[{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]],
    )
    refusal: str | None = Field(
        default=None, description="Text with which the assistant refused, instead of its content.", examples=["I cannot."]
    )
    reasoning_content: str | None = Field(
        default=None,
        description="Reasoning of the assistant before its content, for templates that render it. vLLM's.",
        examples=["The user greets me."],
    )
    name: str | None = Field(default=None, description="Name of the author, for templates that use it.", examples=["David"])
    tool_call_id: str | None = Field(
        default=None,
        description="Identifier of the tool call to which a message with the role `tool` responds.",
        examples=["call_1"],
    )

    @model_validator(mode="after")
    def _check_body(self) -> Message:
        if self.content is None and self.tool_calls is None and self.refusal is None:
            raise ValueError("missing field `content` or `tool_calls`")
        return self

    @property
    def text(self) -> str:
        """The content as one string, or the tool calls as JSON text: what a template receives."""
        if self.content is None:
            return dumps(self.tool_calls) if self.refusal is None else self.refusal
        return "".join((chunk.text if chunk.type == "text" else chunk.refusal) or "" for chunk in self.content)

    @property
    def image_urls(self) -> list[str]:
        """The URLs of its images."""
        return [chunk.image_url.url for chunk in self.content or () if chunk.image_url is not None and chunk.type == "image_url"]

    @property
    def parts(self) -> list[dict[str, str]]:
        """The content as parts, in the form in which templates of multimodal models expect them."""
        return [
            {"type": "image"} if chunk.type == "image_url" else {"type": "text", "text": chunk.text or chunk.refusal or ""}
            for chunk in self.content or ()
        ]


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str = Field(description="Name of the function.", examples=["weather"])
    description: str | None = Field(
        default=None, description="Purpose of the function, as shown to the model.", examples=["The weather in a city"]
    )
    parameters: Any = Field(default=None, description="JSON Schema of the arguments.", examples=[ARGUMENTS])
    arguments: Any = Field(default=None, description="TGI's name for `parameters`, which takes precedence.", examples=[ARGUMENTS])

    @property
    def schema_of_arguments(self) -> Any:
        """JSON Schema of the arguments: OpenAI's field `parameters`, else TGI's `arguments`."""
        return self.arguments if self.parameters is None else self.parameters


class Tool(Body):
    """A tool that the model may call; functions are the only type."""

    type: str = Field(description="`function`.", examples=["function"])
    function: FunctionDefinition = Field(
        description="The function.",
        examples=[{"name": "weather", "description": "The weather in a city", "parameters": ARGUMENTS}],
    )


class FunctionName(Body):
    """Reference to a function."""

    name: str = Field(description="Name of the function.", examples=["weather"])


class AllowedTool(Body):
    """A tool that may be called."""

    type: Literal["function"] = Field(default="function", description="Type of the tool.", examples=["function"])
    function: FunctionName = Field(description="The function.", examples=[{"name": "weather"}])


class AllowedTools(Body):
    """Tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"] = Field(description="As a `tool_choice`.", examples=["auto"])
    tools: ListOf[AllowedTool] = Field(
        description="Those of the request's `tools` that may be called.",
        examples=[[{"type": "function", "function": {"name": "weather"}}]],
    )


class AllowedToolsChoice(Body):
    """A tool choice that allows some of the tools."""

    type: Literal["allowed_tools"] = Field(description="Type of the choice.", examples=["allowed_tools"])
    allowed_tools: AllowedTools = Field(
        description="The tools.", examples=[{"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}]
    )


class NamedToolChoice(Body):
    """A tool choice that forces one function."""

    type: Literal["function"] = Field(default="function", description="Type of the tool.", examples=["function"])
    function: FunctionName = Field(description="The function to call.", examples=[{"name": "weather"}])


class PredictionPart(Body):
    """A part of a prediction."""

    type: Literal["text"] = Field(description="Type of the part.", examples=["text"])
    text: str = Field(description="Text of the part.", examples=["def add(a, b):"])


class PredictedOutput(Body):
    """Text that the response is expected to repeat, such as a file that is edited. Only the speed of the response depends on it."""

    type: Literal["content"] = Field(description="Type of the prediction.", examples=["content"])
    content: Annotated[ListOf[PredictionPart], BeforeValidator(_as_chunks, str | list[PredictionPart])] = Field(
        description="The text: a string, or parts that are concatenated.", examples=["def add(a, b):"]
    )

    @property
    def text(self) -> str:
        """The content as one string."""
        return "".join(part.text for part in self.content)


class ChatBody(OpenAIBody):
    """A chat completion request: the messages with generation parameters."""

    messages: ListOf[Message] = Field(
        description="Messages of the chat so far, oldest first.",
        examples=[[{"role": "user", "content": "What is Deep Learning?"}]],
    )
    logprobs: bool | None = Field(
        default=None, description="Return the log probabilities of the generated tokens.", examples=[False]
    )
    top_logprobs: U32 | None = Field(
        default=None,
        description="Return this many of the most probable tokens at each position; requires `logprobs`. At most the server's "
        "`--max-top-n-tokens`.",
        examples=[5],
    )
    tools: ListOf[Tool] | None = Field(
        default=None,
        description="Functions that the model may call. With `response_format`, the response is a call or has that format.",
        examples=[[{"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS}}]],
    )
    tool_choice: str | NamedToolChoice | AllowedToolsChoice | None = Field(
        default=None,
        description="`auto`: the model decides between text and tool calls. `none`: it generates text. `required`: it calls at "
        "least one tool. A function, or the name of one: it calls that function. `allowed_tools`: as if only these were given. "
        "Default: `auto`.",
        examples=["auto", "none", "required", {"type": "function", "function": {"name": "weather"}}],
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Allow more than one tool call in a response. Default: true.", examples=[True]
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="Further variables of the chat template, such as `enable_thinking`. vLLM's.",
        examples=[{"enable_thinking": False}],
    )
    reasoning_effort: str | None = Field(
        default=None,
        description="Passed to the chat template as the variable of this name; most templates do not use it.",
        examples=["low"],
    )
    tool_prompt: str | None = Field(
        default=None,
        description="Text appended to the last message if there are tools. Default: a one-sentence instruction for calling them.",
        examples=["Answer with a call of one of these functions."],
    )
    prediction: PredictedOutput | None = Field(
        default=None,
        description="Text that the response is expected to repeat, from which tokens are drafted. The response is the same without it. "
        "Ignored, with a warning, unless the server speculates (`--speculate`).",
        examples=[{"type": "content", "content": "def add(a, b):"}],
    )
    response_format: GrammarShape | None = Field(
        default=None, description="Grammar that constrains the response.", examples=[{"type": "json_object"}]
    )
