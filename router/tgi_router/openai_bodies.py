"""The bodies of the routes under /v1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tgi_router.bodies import FurtherSampling, GrammarShape
from tgi_router.json_text import dumps
from tgi_router.strict_types import F32, U32, U64, Body, ListOf, schema_keywords

MAX_CHOICES = 16
"""The largest `n`: each choice is a generation of its own. OpenAI's own limit of 128 is all the permits that there are by default."""


class StreamOptions(Body):
    """What a stream tells besides its text."""

    include_usage: bool = Field(
        default=False,
        description="Whether a last chunk, without choices, tells how many tokens were read and written.",
        examples=[True],
    )


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_prompts(value: Any) -> Any:
    if value == []:
        raise ValueError("Empty array detected. Do not use an empty array for the prompt.")
    return _as_list(value)


class OpenAIBody(FurtherSampling):
    """What chat and completions have in common. OpenAI's clients may send null and bare strings where TGI's types refuse them."""

    model: str | None = Field(
        default=None,
        description="The name of the model or of one of its adapters; `/v1/models` lists them. Any other name means the model itself.",
        examples=["tgi"],
    )
    max_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="The most tokens to generate. Default: as many as the server has room for after the prompt.",
        examples=[32],
    )
    max_completion_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None, description="OpenAI's newer name for `max_tokens`. It wins if both are given.", examples=[32]
    )
    temperature: Annotated[F32, schema_keywords(minimum=0)] | None = Field(
        default=None,
        description="What the logits are divided by before a token is drawn: 0.2 is more focused, 0.8 more random. "
        "With 0 the most probable token is taken each time. Change this or `top_p`, not both. Default: 1.",
        examples=[1.0],
    )
    top_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, maximum=1)] | None = Field(
        default=None,
        description="Nucleus sampling: draw among the most probable tokens that together have this probability. Default: 1, all of them.",
        examples=[0.95],
    )
    seed: U64 | None = Field(
        default=None,
        description="The seed of the random numbers: the same request with the same seed draws the same.",
        examples=[42],
    )
    stop: Annotated[ListOf[str], BeforeValidator(_as_list, str | list[str])] | None = Field(
        default=None,
        description="End the text before any of these strings. At most the server's `max_stop_sequences`, of up to 1024 characters.",
        examples=[["\n\n"]],
    )
    frequency_penalty: Annotated[F32, schema_keywords(minimum=-2, maximum=2)] | None = Field(
        default=None,
        description="Is taken off a token's logit for each time that it has occurred, so that the same line is repeated less.",
        examples=[1.0],
    )
    presence_penalty: Annotated[F32, schema_keywords(minimum=-2, maximum=2)] | None = Field(
        default=None,
        description="Is taken off a token's logit once it has occurred, so that new topics come up more.",
        examples=[0.1],
    )
    logit_bias: ListOf[F32] | dict[str, Any] | None = Field(
        default=None,
        description="Is added to the logits of tokens: an object from token ids to numbers from -100, which all but bans a token, to "
        "100, which all but forces it. TGI's form, a list, is taken and does nothing.",
        examples=[{"42": -100}],
    )
    n: Annotated[U32, schema_keywords(minimum=1, maximum=MAX_CHOICES)] | None = Field(
        default=None, description="How many answers to generate. Default: 1.", examples=[1]
    )
    stream: bool | None = Field(default=None, description="Whether to answer with a stream of chunks.", examples=[False])
    stream_options: StreamOptions | None = Field(
        default=None, description="What a stream tells besides its text.", examples=[{"include_usage": True}]
    )


class CompletionBody(OpenAIBody):
    """One prompt or several, and how to go on from them."""

    prompt: Annotated[ListOf[str], BeforeValidator(_as_prompts, str | list[str])] = Field(
        description="The prompt, or a list of them. At most the server's `max_client_batch_size`.",
        examples=["My name is Olivier and I"],
    )
    repetition_penalty: Annotated[F32, schema_keywords(minimum=1e-30, maximum=1e30)] | None = Field(
        default=None,
        description="Makes tokens that have occurred, in the prompt too, less likely if it is above 1; 1 is no penalty.",
        examples=[1.03],
    )
    suffix: str | None = Field(
        default=None, description="Not supported: put what is to follow into the prompt, in the model's own way.", examples=[None]
    )
    echo: bool | None = Field(default=None, description="Put the prompt before the text. Excludes `logprobs`.", examples=[False])
    logprobs: U32 | None = Field(
        default=None,
        description="Tell the log probabilities of the text's tokens, and of this many of the most probable ones at each place.",
        examples=[1],
    )
    best_of: U32 | None = Field(
        default=None,
        description="Generate this many texts and answer with the `n` likeliest. At most the server's `max_best_of`; cannot be streamed.",
        examples=[1],
    )


class ImageUrl(Body):
    """Where an image is."""

    url: str = Field(description="The image's address.", examples=["https://example.com/cat.png"])


class MessageChunk(Body):
    """A part of a message's content."""

    type: Literal["text", "image_url"] = Field(description="What the part is. Images are refused.", examples=["text"])
    text: str | None = Field(default=None, description="The text of a part that is text.", examples=["What is Deep Learning?"])
    image_url: ImageUrl | None = Field(
        default=None, description="The image of a part that is one.", examples=[{"url": "https://example.com/cat.png"}]
    )

    @model_validator(mode="after")
    def _check_part(self) -> MessageChunk:
        if (self.text if self.type == "text" else self.image_url) is None:
            raise ValueError(f"missing field `{self.type}`")
        return self


def _as_chunks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Message(Body):
    """One turn of a conversation: a content, or the tool calls of an assistant."""

    role: str = Field(
        description="Who speaks. The model's chat template decides which roles there are; `system`, `user`, `assistant` and `tool` "
        "are usual.",
        examples=["user"],
    )
    content: Annotated[ListOf[MessageChunk], BeforeValidator(_as_chunks, str | list[MessageChunk])] | None = Field(
        default=None, description="What is said: a string, or parts that are put together.", examples=["What is Deep Learning?"]
    )
    tool_calls: ListOf[dict[str, Any]] | None = Field(
        default=None,
        description="The tools that the assistant called, as they were answered.",
        examples=[[{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]],
    )
    name: str | None = Field(default=None, description="The speaker's name, for templates that use it.", examples=["David"])
    tool_call_id: str | None = Field(
        default=None, description="The call that a message of the role `tool` answers.", examples=["call_1"]
    )

    @model_validator(mode="after")
    def _check_body(self) -> Message:
        if self.content is None and self.tool_calls is None:
            raise ValueError("data did not match any variant of untagged enum MessageBody")
        return self

    @property
    def text(self) -> str:
        """The content as one string, which is all that a template sees."""
        if self.content is None:
            return dumps(self.tool_calls)
        return "".join(chunk.text or "" for chunk in self.content if chunk.type == "text")

    @property
    def has_image(self) -> bool:
        """Whether a part of it is no text."""
        return any(chunk.type == "image_url" for chunk in self.content or ())


_ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str = Field(description="The function's name.", examples=["weather"])
    description: str | None = Field(default=None, description="What it does, for the model.", examples=["The weather in a city"])
    parameters: Any = Field(default=None, description="The JSON Schema of its arguments.", examples=[_ARGUMENTS])
    arguments: Any = Field(
        default=None, description="TGI's name for `parameters`. It counts if there is none.", examples=[_ARGUMENTS]
    )

    @property
    def schema_of_arguments(self) -> Any:
        """OpenAI calls it `parameters`, TGI `arguments`."""
        return self.arguments if self.parameters is None else self.parameters


class Tool(Body):
    """A tool; only functions exist."""

    type: str = Field(description="`function`.", examples=["function"])
    function: FunctionDefinition = Field(
        description="The function.",
        examples=[{"name": "weather", "description": "The weather in a city", "parameters": _ARGUMENTS}],
    )


class FunctionName(Body):
    """Which function."""

    name: str = Field(description="The function's name.", examples=["weather"])


class NamedToolChoice(Body):
    """The one function to call."""

    type: Literal["function"] = Field(default="function", description="What is called.", examples=["function"])
    function: FunctionName = Field(description="Which one.", examples=[{"name": "weather"}])


class ChatBody(OpenAIBody):
    """A conversation, and how to answer it."""

    messages: ListOf[Message] = Field(
        description="The conversation so far, oldest message first.",
        examples=[[{"role": "user", "content": "What is Deep Learning?"}]],
    )
    logprobs: bool | None = Field(
        default=None, description="Tell the log probabilities of the answer's tokens.", examples=[False]
    )
    top_logprobs: U32 | None = Field(
        default=None,
        description="Tell this many of the most probable tokens at each place; needs `logprobs`. At most the server's "
        "`--max-top-n-tokens`.",
        examples=[5],
    )
    tools: ListOf[Tool] | None = Field(
        default=None,
        description="The functions that the model may call. They exclude `response_format`.",
        examples=[[{"type": "function", "function": {"name": "weather", "parameters": _ARGUMENTS}}]],
    )
    tool_choice: str | NamedToolChoice | None = Field(
        default=None,
        description="`auto`: the model speaks or calls, as it sees fit. `none`: it speaks. `required`: it calls at least one. "
        "A function, or its name: it calls that one. Default: `auto`.",
        examples=["auto", "none", "required", {"type": "function", "function": {"name": "weather"}}],
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether more than one tool may be called at once. Default: true.", examples=[True]
    )
    tool_prompt: str | None = Field(
        default=None,
        description="What is added to the last message when there are tools. Default: how to call them, in one sentence.",
        examples=["Answer with a call of one of these functions."],
    )
    response_format: GrammarShape | None = Field(
        default=None, description="What the answer must follow.", examples=[{"type": "json_object"}]
    )
