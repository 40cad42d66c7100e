"""Response models of the Responses API, for the OpenAPI document only: the handlers render the JSON themselves."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tgi_router.answers import Answer, Count
from tgi_router.vllm_fields import ARGUMENTS

Status = Literal["in_progress", "completed", "incomplete"]

_ID = "Unique identifier of the item."
_STATUS = "`in_progress` where a stream starts the item; `incomplete` if the token limit cut it off; else `completed`."
_PART = {"type": "output_text", "text": "A kind of", "annotations": [], "logprobs": []}
_MESSAGE = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [_PART]}
_TYPE = "Type of the event."
_NUMBER = "Number of the event in the stream, from 0."
_ITEM = "Identifier of the item."
_OUTPUT = "Index of the item in the output, from 0."
_CONTENT = "Index of the part in the item; always 0."


class OutputText(Answer):
    """Text of a message."""

    type: Literal["output_text"] = Field(description="Type of the part.", examples=["output_text"])
    text: str = Field(description="The text.", examples=["A kind of"])
    annotations: list[Any] = Field(description="Always empty.", examples=[[]])
    logprobs: list[Any] = Field(description="Always empty.", examples=[[]])


class ReasoningText(Answer):
    """Text of reasoning."""

    type: Literal["reasoning_text"] = Field(description="Type of the part.", examples=["reasoning_text"])
    text: str = Field(description="The text.", examples=["The user asks for a definition."])


class MessageItem(Answer):
    """The assistant's message."""

    type: Literal["message"] = Field(description="Type of the item.", examples=["message"])
    id: str = Field(description=_ID, examples=["msg_1"])
    status: Status = Field(description=_STATUS, examples=["completed"])
    role: Literal["assistant"] = Field(description="Author of the message.", examples=["assistant"])
    content: list[OutputText] = Field(description="The text of the message, as one part.", examples=[[_PART]])


class ReasoningItem(Answer):
    """Reasoning before the answer."""

    type: Literal["reasoning"] = Field(description="Type of the item.", examples=["reasoning"])
    id: str = Field(description=_ID, examples=["rs_1"])
    status: Status = Field(description=_STATUS, examples=["completed"])
    summary: list[Any] = Field(description="Always empty: reasoning is not summarized.", examples=[[]])
    content: list[ReasoningText] = Field(
        description="The reasoning, as one part.",
        examples=[[{"type": "reasoning_text", "text": "The user asks for a definition."}]],
    )
    encrypted_content: None = Field(description="Always null.", examples=[None])


class FunctionCallItem(Answer):
    """A function call."""

    type: Literal["function_call"] = Field(description="Type of the item.", examples=["function_call"])
    id: str = Field(description=_ID, examples=["fc_1"])
    status: Status = Field(description=_STATUS, examples=["completed"])
    call_id: str = Field(description="Identifier of the call; its `function_call_output` refers to it.", examples=["call_1"])
    name: str = Field(description="Name of the function.", examples=["weather"])
    namespace: str = Field(default="", description="Namespace of the function; only if it has one.", examples=["crm"])
    arguments: str = Field(description="Arguments of the function, as JSON text.", examples=['{"city":"Paris"}'])


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(Answer):
    """Breakdown of prompt tokens by their source."""

    cached_tokens: Count = Field(description="Prompt tokens that were found in the prefix cache.", examples=[0])
    cache_write_tokens: Count = Field(description="Always 0: all prompts are cached.", examples=[0])


class OutputTokensDetails(Answer):
    """Breakdown of generated tokens."""

    reasoning_tokens: Count = Field(description="Generated tokens that are reasoning.", examples=[0])


class ResponseUsage(Answer):
    """Token usage of a response."""

    input_tokens: Count = Field(description="Number of tokens in the prompt.", examples=[7])
    input_tokens_details: InputTokensDetails = Field(
        description="Breakdown of the prompt tokens.", examples=[{"cached_tokens": 0, "cache_write_tokens": 0}]
    )
    output_tokens: Count = Field(description="Number of generated tokens.", examples=[32])
    output_tokens_details: OutputTokensDetails = Field(
        description="Breakdown of the generated tokens.", examples=[{"reasoning_tokens": 0}]
    )
    total_tokens: Count = Field(description="Number of prompt tokens and generated tokens together.", examples=[39])


class ResponseError(Answer):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"] = Field(
        description="OpenAI's code of the error.", examples=["server_error"]
    )
    message: str = Field(description="Error message.", examples=["Request timed out"])


class IncompleteDetails(Answer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = Field(description="The token limit was reached.", examples=["max_output_tokens"])


_TOOL = {"type": "function", "name": "weather", "description": None, "parameters": ARGUMENTS, "strict": False}
_USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 32,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 39,
}


class ResponseObject(Answer):
    """A response. The fields of its request are repeated, with defaults where it has none."""

    id: str = Field(description="Unique identifier of the response.", examples=["resp_1"])
    object: Literal["response"] = Field(description="Type of the object.", examples=["response"])
    created_at: Count = Field(description="Unix timestamp of the start of the response, in seconds.", examples=[1706270835])
    model: str = Field(
        description="Name of the model: as given in the request, else the name under which it is served.", examples=["gpt2"]
    )
    background: Literal[False] = Field(description="Always false.", examples=[False])
    previous_response_id: None = Field(description="Always null.", examples=[None])
    store: Literal[False] = Field(description="Always false: nothing is stored.", examples=[False])
    instructions: str | None = Field(description="`instructions` of the request.", examples=["You are brief."])
    max_output_tokens: Count | None = Field(description="`max_output_tokens` of the request.", examples=[64])
    temperature: float = Field(description="`temperature` of the request.", examples=[1.0])
    top_p: float = Field(description="`top_p` of the request.", examples=[1.0])
    tools: list[dict[str, Any]] = Field(description="`tools` of the request.", examples=[[_TOOL]])
    tool_choice: str | dict[str, Any] = Field(description="`tool_choice` of the request.", examples=["auto"])
    parallel_tool_calls: bool = Field(description="`parallel_tool_calls` of the request.", examples=[True])
    text: dict[str, Any] = Field(description="`text` of the request.", examples=[{"format": {"type": "text"}}])
    reasoning: dict[str, Any] = Field(description="`reasoning` of the request.", examples=[{"effort": None, "summary": None}])
    truncation: Literal["disabled"] = Field(description="Always `disabled`.", examples=["disabled"])
    metadata: dict[str, Any] = Field(description="Always empty.", examples=[{}])
    status: Literal["in_progress", "completed", "incomplete", "failed"] = Field(
        description="`in_progress` where a stream starts; `incomplete` if the token limit was reached; `failed` after an error.",
        examples=["completed"],
    )
    completed_at: Count | None = Field(
        description="Unix timestamp of the completion, in seconds; null without one.", examples=[1706270836]
    )
    error: ResponseError | None = Field(description="Why the response failed, if it did.", examples=[None])
    incomplete_details: IncompleteDetails | None = Field(
        description="Why the response is incomplete, if it is.", examples=[{"reason": "max_output_tokens"}]
    )
    output: list[Item] = Field(description="Reasoning, message and function calls.", examples=[[_MESSAGE]])
    usage: ResponseUsage | None = Field(description="Token usage; null unless the response has ended.", examples=[_USAGE])


_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1706270835,
    "model": "gpt2",
    "background": False,
    "previous_response_id": None,
    "store": False,
    "instructions": None,
    "max_output_tokens": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": None},
    "truncation": "disabled",
    "metadata": {},
    "status": "completed",
    "completed_at": 1706270836,
    "error": None,
    "incomplete_details": None,
    "output": [_MESSAGE],
    "usage": _USAGE,
}


class Event(Answer):
    """Base of all events."""

    sequence_number: Count = Field(description=_NUMBER, examples=[0])


class ItemEvent(Event):
    """Base of events about one item of the output."""

    item_id: str = Field(description=_ITEM, examples=["msg_1", "rs_1", "fc_1"])
    output_index: Count = Field(description=_OUTPUT, examples=[0])


class ContentEvent(ItemEvent):
    """Base of events about one part of an item's content."""

    content_index: Count = Field(description=_CONTENT, examples=[0])


class ResponseChanged(Event):
    """The response has begun or ended."""

    type: Literal["response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"] = (
        Field(description=_TYPE, examples=["response.completed"])
    )
    response: ResponseObject = Field(description="The response so far.", examples=[_RESPONSE])


class ItemChanged(Event):
    """An item of the output has begun or ended."""

    type: Literal["response.output_item.added", "response.output_item.done"] = Field(
        description=_TYPE, examples=["response.output_item.done"]
    )
    output_index: Count = Field(description=_OUTPUT, examples=[0])
    item: Item = Field(description="The item; without its text where it begins.", examples=[_MESSAGE])


class PartChanged(ContentEvent):
    """A part of an item has begun or ended."""

    type: Literal["response.content_part.added", "response.content_part.done"] = Field(
        description=_TYPE, examples=["response.content_part.done"]
    )
    part: OutputText | ReasoningText = Field(description="The part; without its text where it begins.", examples=[_PART])


class TextDeltaEvent(ContentEvent):
    """A piece of a message's text."""

    type: Literal["response.output_text.delta"] = Field(description=_TYPE, examples=["response.output_text.delta"])
    delta: str = Field(description="The next piece of the text.", examples=[" kind"])
    logprobs: list[Any] = Field(description="Always empty.", examples=[[]])


class TextDoneEvent(ContentEvent):
    """The text of a message is complete."""

    type: Literal["response.output_text.done"] = Field(description=_TYPE, examples=["response.output_text.done"])
    text: str = Field(description="The text.", examples=["A kind of"])
    logprobs: list[Any] = Field(description="Always empty.", examples=[[]])


class ReasoningDeltaEvent(ContentEvent):
    """A piece of the reasoning."""

    type: Literal["response.reasoning_text.delta"] = Field(description=_TYPE, examples=["response.reasoning_text.delta"])
    delta: str = Field(description="The next piece of the reasoning.", examples=["The user"])


class ReasoningDoneEvent(ContentEvent):
    """The reasoning is complete."""

    type: Literal["response.reasoning_text.done"] = Field(description=_TYPE, examples=["response.reasoning_text.done"])
    text: str = Field(description="The reasoning.", examples=["The user asks for a definition."])


class ArgumentsDeltaEvent(ItemEvent):
    """A piece of a function call's arguments."""

    type: Literal["response.function_call_arguments.delta"] = Field(
        description=_TYPE, examples=["response.function_call_arguments.delta"]
    )
    delta: str = Field(description="The next piece of the arguments, as JSON text.", examples=['{"city"'])


class ArgumentsDoneEvent(ItemEvent):
    """The arguments of a function call are complete."""

    type: Literal["response.function_call_arguments.done"] = Field(
        description=_TYPE, examples=["response.function_call_arguments.done"]
    )
    name: str = Field(description="Name of the function.", examples=["weather"])
    namespace: str = Field(default="", description="Namespace of the function; only if it has one.", examples=["crm"])
    arguments: str = Field(description="Arguments of the function, as JSON text.", examples=['{"city":"Paris"}'])


ResponseEvents = (
    ResponseChanged
    | ItemChanged
    | PartChanged
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)
