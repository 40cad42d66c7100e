"""Request body of OpenAI's Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from tgi_router.strict_types import F32, U32, Body, ListOf, schema_keywords
from tgi_router.vllm_fields import ARGUMENTS

_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
"""Fields that an item of a type has."""


class InputPart(Body):
    """A part of an item's content."""

    type: str = Field(
        description="Type of the part: `input_text`, `output_text`, `text`, `reasoning_text`, `summary_text`, `refusal`, or "
        "`input_image` if the model sees images. Others, such as `input_file`, are rejected.",
        examples=["input_text"],
    )
    text: str | None = Field(default=None, description="Text of the part.", examples=["What is Deep Learning?"])
    refusal: str | None = Field(default=None, description="Text with which the assistant refused.", examples=["I cannot."])
    image_url: str | None = Field(
        default=None, description="`data:` URL of an image, in base64.", examples=["data:image/png;base64,iVBORw0KGgo="]
    )
    detail: str | None = Field(default=None, description="Accepted without effect.", examples=["auto"])


class InputItem(Body):
    """An item of the conversation."""

    type: str = Field(
        default="message",
        description="Type of the item: `message`, `function_call`, `function_call_output` or `reasoning`. Others are rejected: calls of "
        "built-in tools, and `item_reference`, since nothing is stored.",
        examples=["message"],
    )
    id: str | None = Field(default=None, description="Identifier of the item, without effect.", examples=["msg_1"])
    status: str | None = Field(default=None, description="Status of the item, without effect.", examples=["completed"])
    role: Literal["user", "assistant", "system", "developer"] | None = Field(
        default=None, description="Author of a message; `developer` is `system`.", examples=["user"]
    )
    content: str | ListOf[InputPart] | None = Field(
        default=None,
        description="Content of a message, or the text of reasoning: a string, or parts that are concatenated.",
        examples=["What is Deep Learning?"],
    )
    summary: ListOf[InputPart] | None = Field(
        default=None, description="Summary of reasoning; used if it has no `content`.", examples=[[]]
    )
    encrypted_content: str | None = Field(
        default=None, description="Accepted without effect: only the service that encrypted it can read it.", examples=[None]
    )
    call_id: str | None = Field(default=None, description="Identifier of a function call.", examples=["call_1"])
    name: str | None = Field(default=None, description="Name of the called function.", examples=["weather"])
    namespace: str | None = Field(default=None, description="Namespace of the called function, if any.", examples=[None])
    arguments: str | None = Field(
        default=None, description="Arguments of the called function, as JSON text.", examples=['{"city":"Paris"}']
    )
    output: str | ListOf[InputPart] | None = Field(
        default=None, description="Result of a function call: a string or text parts.", examples=["18 degrees"]
    )

    @model_validator(mode="after")
    def _check_item(self) -> InputItem:
        for name in _NEEDED.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"missing field `{name}`")
        return self


class FunctionTool(Body):
    """A function that the model may call."""

    type: str = Field(
        description="`function`, or outside of a namespace also `namespace`. Built-in tools, such as `web_search`, and tools of the type "
        "`custom` are rejected.",
        examples=["function"],
    )
    name: str | None = Field(default=None, description="Name of the function.", examples=["weather"])
    description: str | None = Field(
        default=None, description="Purpose of the function, as shown to the model.", examples=["The weather in a city"]
    )
    parameters: dict[str, Any] | None = Field(default=None, description="JSON Schema of the arguments.", examples=[ARGUMENTS])
    strict: bool | None = Field(
        default=None,
        description="Accepted without effect: a `tool_choice` of `required` or of a function enforces the schema, `auto` does not.",
        examples=[True],
    )


class ToolParam(FunctionTool):
    """A function that the model may call, or a namespace of functions."""

    tools: ListOf[FunctionTool] | None = Field(
        default=None,
        description="With the type `namespace`: its functions. The model calls them as `namespace.function`.",
        examples=[[{"type": "function", "name": "weather", "parameters": ARGUMENTS}]],
    )


class ChosenTool(Body):
    """A function by name."""

    type: str = Field(default="function", description="`function`.", examples=["function"])
    name: str | None = Field(
        default=None, description="Name of the function; in a namespace `namespace.function`.", examples=["weather"]
    )


class ToolChoiceObject(ChosenTool):
    """A function that must be called, or functions that may be."""

    mode: Literal["auto", "required"] | None = Field(
        default=None, description="With the type `allowed_tools`: as a `tool_choice`.", examples=["auto"]
    )
    tools: ListOf[ChosenTool] | None = Field(
        default=None,
        description="With the type `allowed_tools`: those of the request's `tools` that may be called.",
        examples=[[{"type": "function", "name": "weather"}]],
    )


class TextFormat(Body):
    """A format of the text."""

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="`text`: any text; `json_object`: a JSON object; `json_schema`: JSON of the given schema.",
        examples=["json_schema"],
    )
    name: str | None = Field(default=None, description="Name of the schema.", examples=["person"])
    description: str | None = Field(default=None, description="Accepted without effect.", examples=["A person"])
    schema_of_text: dict[str, Any] | None = Field(
        default=None, alias="schema", description="JSON Schema of the text.", examples=[ARGUMENTS]
    )
    strict: bool | None = Field(
        default=None, description="Accepted without effect: the schema is always enforced.", examples=[True]
    )


class TextConfig(Body):
    """Options of the text."""

    format: TextFormat | None = Field(
        default=None,
        description="Format that constrains the text. With tools, the response is a function call or has that format.",
        examples=[{"type": "json_object"}],
    )
    verbosity: str | None = Field(
        default=None, description="Ignored, with a warning unless `medium`: ask for it in the input.", examples=["medium"]
    )


class ReasoningConfig(Body):
    """Options of the reasoning."""

    effort: str | None = Field(
        default=None,
        description="Passed to the chat template as the variable `reasoning_effort`. With `none`, the variable `enable_thinking` is "
        "false instead.",
        examples=["low"],
    )
    summary: str | None = Field(
        default=None, description="Ignored, with a warning: reasoning is returned whole, not summarized.", examples=[None]
    )
    generate_summary: str | None = Field(default=None, description="Older name of `summary`.", examples=[None])


def full_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a function."""
    return name if namespace is None else f"{namespace}.{name}"


class ResponsesBody(Body):
    """A conversation to continue, with generation parameters."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(
        default=None,
        description="Name of the model or of one of its adapters; `/v1/models` lists them. Any other name selects the model itself.",
        examples=["tgi"],
    )
    input: str | ListOf[InputItem] = Field(
        description="The user's message, or the items of the conversation so far, oldest first.",
        examples=["What is Deep Learning?", [{"role": "user", "content": "What is Deep Learning?"}]],
    )
    instructions: str | None = Field(default=None, description="System message before the input.", examples=["You are brief."])
    max_output_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="Maximum number of tokens to generate, reasoning included. Default: as many as the server's limits allow.",
        examples=[64],
    )
    stream: bool | None = Field(default=None, description="Stream the response as server-sent events.", examples=[False])
    temperature: Annotated[F32, schema_keywords(minimum=0)] | None = Field(
        default=None, description="Sampling temperature. With 0, decoding is greedy. Default: 1.", examples=[1.0]
    )
    top_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, maximum=1)] | None = Field(
        default=None,
        description="Nucleus sampling: keep the most probable tokens that together have this probability. Default: 1, all tokens.",
        examples=[0.95],
    )
    tools: ListOf[ToolParam] | None = Field(
        default=None,
        description="Functions that the model may call.",
        examples=[[{"type": "function", "name": "weather", "parameters": ARGUMENTS}]],
    )
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceObject | None = Field(
        default=None,
        description="`auto`: the model decides between text and function calls. `none`: it generates text. `required`: it calls at least "
        "one function. A function: it calls that function. `allowed_tools`: as if only these were given. Default: `auto`.",
        examples=["auto", {"type": "function", "name": "weather"}],
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Allow more than one function call in a response. Default: true.", examples=[True]
    )
    text: TextConfig | None = Field(
        default=None, description="Options of the text.", examples=[{"format": {"type": "json_object"}}]
    )
    reasoning: ReasoningConfig | None = Field(default=None, description="Options of the reasoning.", examples=[{"effort": "low"}])
    include: ListOf[str] | None = Field(
        default=None,
        description="Further output. `message.output_text.logprobs` is rejected; others are ignored, with a warning.",
        examples=[[]],
    )
