"""Request bodies of Anthropic's routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from tgi_router.strict_types import F32, I32, U32, Body, ListOf, schema_keywords
from tgi_router.vllm_fields import ARGUMENTS

CACHE_CONTROL = Field(
    default=None,
    description="Accepted without effect: prompts are cached by their tokens, whatever is marked.",
    examples=[{"type": "ephemeral"}],
)

_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "image": ("source",),
}
"""Fields that a block of a type has."""
_RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "18 degrees"}


class TextBlock(Body):
    """A text of the system prompt or of a tool's result."""

    type: str = Field(description="`text`; other types are rejected.", examples=["text"])
    text: str | None = Field(default=None, description="The text.", examples=["You are brief."])
    cache_control: Any = CACHE_CONTROL


class ImageSource(Body):
    """Where an image comes from."""

    type: str = Field(description="`base64` or `url`; others, such as `file`, are rejected.", examples=["base64"])
    media_type: str | None = Field(default=None, description="Type of an image in base64.", examples=["image/png"])
    data: str | None = Field(default=None, description="An image in base64.", examples=["iVBORw0KGgo="])
    url: str | None = Field(default=None, description="URL of an image.", examples=["data:image/png;base64,iVBORw0KGgo="])


class ContentBlock(Body):
    """A part of a message."""

    type: str = Field(
        description="Type of the part: `text`, `thinking`, `redacted_thinking` (dropped: only Anthropic can read it), `tool_use`, "
        "`tool_result`, or `image` if the model sees images. Others, such as `document`, are rejected.",
        examples=["text"],
    )
    text: str | None = Field(default=None, description="Text of a part of type `text`.", examples=["What is Deep Learning?"])
    thinking: str | None = Field(
        default=None,
        description="Reasoning of the assistant, as returned in an earlier response, for chat templates that render it.",
        examples=["The user greets me."],
    )
    signature: str | None = Field(default=None, description="Accepted without effect.", examples=[""])
    id: str | None = Field(default=None, description="Identifier of a tool use.", examples=["toolu_1"])
    name: str | None = Field(default=None, description="Name of the tool that the assistant used.", examples=["weather"])
    input: dict[str, Any] | None = Field(default=None, description="Arguments of a tool use.", examples=[{"city": "Paris"}])
    tool_use_id: str | None = Field(default=None, description="Identifier of the tool use of a result.", examples=["toolu_1"])
    content: str | ListOf[TextBlock] | None = Field(
        default=None, description="Result of a tool: a string or text parts.", examples=["18 degrees"]
    )
    source: ImageSource | None = Field(
        default=None,
        description="Source of an image.",
        examples=[{"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}],
    )
    is_error: bool | None = Field(
        default=None, description="Whether the tool failed: the result then begins with `Error: `.", examples=[False]
    )
    cache_control: Any = CACHE_CONTROL

    @model_validator(mode="after")
    def _check_part(self) -> ContentBlock:
        for name in _NEEDED.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"missing field `{name}`")
        return self


class MessageParam(Body):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"] = Field(
        description="Author of the turn. The model continues a last turn of the assistant.", examples=["user"]
    )
    content: str | ListOf[ContentBlock] = Field(
        description="Content of the turn: a string, or parts. Texts of one turn are concatenated.",
        examples=["What is Deep Learning?", [_RESULT]],
    )


class ToolParam(Body):
    """A tool that the model may use."""

    type: str | None = Field(
        default=None,
        description="`custom`, the default. Tools that Anthropic defines or runs, such as web search, are rejected.",
        examples=["custom"],
    )
    name: str = Field(description="Name of the tool.", examples=["weather"])
    description: str | None = Field(
        default=None, description="Purpose of the tool, as shown to the model.", examples=["The weather in a city"]
    )
    input_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema of the arguments.", examples=[ARGUMENTS])
    strict: bool | None = Field(
        default=None,
        description="Accepted without effect: a `tool_choice` of `any` or `tool` enforces the schema, `auto` does not.",
        examples=[True],
    )
    cache_control: Any = CACHE_CONTROL


class ToolChoiceParam(Body):
    """Whether the model uses tools."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`auto`: the model decides. `any`: it uses at least one tool. `tool`: it uses the named tool. `none`: it uses "
        "none.",
        examples=["auto"],
    )
    name: str | None = Field(default=None, description="Name of the tool, with the type `tool`.", examples=["weather"])
    disable_parallel_tool_use: bool | None = Field(
        default=None, description="Allow at most one tool use in a response.", examples=[False]
    )


class ThinkingParam(Body):
    """Whether the model reasons before its answer."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"] = Field(
        description="`disabled`: the chat template gets the variables `enable_thinking` and `thinking` as false; otherwise as true. "
        "Templates of models that always reason ignore them.",
        examples=["enabled"],
    )
    budget_tokens: U32 | None = Field(
        default=None, description="Ignored, with a warning: reasoning is limited by `max_tokens` only.", examples=[1024]
    )
    display: str | None = Field(
        default=None,
        description="Ignored, with a warning unless `summarized`: reasoning is returned whole.",
        examples=["summarized"],
    )


class OutputFormat(Body):
    """A format that constrains the response."""

    type: Literal["json_schema"] = Field(description="Type of the format.", examples=["json_schema"])
    schema_of_output: dict[str, Any] = Field(alias="schema", description="JSON Schema of the response.", examples=[ARGUMENTS])


class OutputConfig(Body):
    """Options of the output."""

    effort: str | None = Field(
        default=None, description="Passed to the chat template as the variable `reasoning_effort`.", examples=["low"]
    )
    format: OutputFormat | None = Field(
        default=None,
        description="Format that constrains the response. With tools, the response is a tool use or has that format.",
        examples=[{"type": "json_schema", "schema": ARGUMENTS}],
    )


class CountTokensBody(Body):
    """A conversation whose tokens are counted."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(
        description="Name of the model or of one of its adapters; `/v1/models` lists them. Any other name selects the model itself.",
        examples=["tgi"],
    )
    messages: ListOf[MessageParam] = Field(
        description="Turns of the conversation so far, oldest first. Consecutive turns of the user are combined.",
        examples=[[{"role": "user", "content": "What is Deep Learning?"}]],
    )
    system: str | ListOf[TextBlock] | None = Field(
        default=None, description="System prompt: a string, or text parts that are concatenated.", examples=["You are brief."]
    )
    tools: ListOf[ToolParam] | None = Field(
        default=None,
        description="Tools that the model may use.",
        examples=[[{"name": "weather", "input_schema": ARGUMENTS}]],
    )
    tool_choice: ToolChoiceParam | None = Field(
        default=None, description="Whether the model uses tools. Default: `auto`.", examples=[{"type": "auto"}]
    )
    thinking: ThinkingParam | None = Field(
        default=None,
        description="Whether the model reasons before its answer. Default: `disabled`.",
        examples=[{"type": "enabled", "budget_tokens": 1024}],
    )
    output_config: OutputConfig | None = Field(
        default=None, description="Options of the output.", examples=[{"format": {"type": "json_schema", "schema": ARGUMENTS}}]
    )


class MessagesBody(CountTokensBody):
    """A conversation to continue, with generation parameters."""

    max_tokens: Annotated[U32, schema_keywords(minimum=1)] = Field(
        description="Maximum number of tokens to generate, reasoning included.", examples=[64]
    )
    stop_sequences: ListOf[str] | None = Field(
        default=None,
        description="Stop before any of these strings. At most the server's `max_stop_sequences`, of up to 1024 characters each.",
        examples=[["\n\nHuman:"]],
    )
    stream: bool | None = Field(default=None, description="Stream the response as server-sent events.", examples=[False])
    temperature: Annotated[F32, schema_keywords(minimum=0)] | None = Field(
        default=None, description="Sampling temperature. With 0, decoding is greedy. Default: 1.", examples=[1.0]
    )
    top_k: Annotated[I32, schema_keywords(minimum=-1)] | None = Field(
        default=None, description="Sample only from this many of the most probable tokens; 0 and -1 disable it.", examples=[10]
    )
    top_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, maximum=1)] | None = Field(
        default=None,
        description="Nucleus sampling: keep the most probable tokens that together have this probability. Default: 1, all tokens.",
        examples=[0.95],
    )
