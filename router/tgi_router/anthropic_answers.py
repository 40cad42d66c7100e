"""Response models of Anthropic's routes, for the OpenAPI document only: the handlers render the JSON themselves."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tgi_router.answers import Answer, Count

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

_REASON = (
    "Why generation ended. `end_turn`: the model ended its turn; `max_tokens`: the token limit of the request or of the server was "
    "reached; `stop_sequence`: a stop string matched; `tool_use`: the model used a tool."
)
_STOP = "The stop string that matched; null if none did."
_INDEX = "Index of the block in the message, from 0."
_ERROR = {"type": "invalid_request_error", "message": "Input validation error: `messages` must have at least one message"}


class AnthropicErrorBody(Answer):
    """Details of an error, in Anthropic's format."""

    type: str = Field(description="Anthropic's type of the error.", examples=["invalid_request_error"])
    message: str = Field(description="Error message.", examples=[_ERROR["message"]])


class AnthropicErrorResponse(Answer):
    """Anthropic's error object; within a stream, the event `error`."""

    type: Literal["error"] = Field(description="Type of the object.", examples=["error"])
    error: AnthropicErrorBody = Field(description="Details of the error.", examples=[_ERROR])


class MessageUsage(Answer):
    """Token usage of a message."""

    input_tokens: Count = Field(description="Prompt tokens that were not found in the prefix cache.", examples=[7])
    cache_creation_input_tokens: Count = Field(description="Always 0: all prompts are cached.", examples=[0])
    cache_read_input_tokens: Count = Field(description="Prompt tokens that were found in the prefix cache.", examples=[0])
    output_tokens: Count = Field(description="Number of tokens generated so far, reasoning included.", examples=[32])


_USAGE = {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 32}


class TextContent(Answer):
    """A text of a message."""

    type: Literal["text"] = Field(description="Type of the block.", examples=["text"])
    text: str = Field(description="The text.", examples=["A kind of"])


class ThinkingContent(Answer):
    """Reasoning before the answer."""

    type: Literal["thinking"] = Field(description="Type of the block.", examples=["thinking"])
    thinking: str = Field(description="The reasoning.", examples=["The user asks for a definition."])
    signature: Literal["unsigned", ""] = Field(
        description="Always the same; empty where a block of a stream starts.", examples=["unsigned"]
    )


class ToolUseContent(Answer):
    """The use of a tool."""

    type: Literal["tool_use"] = Field(description="Type of the block.", examples=["tool_use"])
    id: str = Field(description="Identifier; the tool's result refers to it as `tool_use_id`.", examples=["toolu_1"])
    name: str = Field(description="Name of the tool.", examples=["weather"])
    input: dict[str, Any] = Field(
        description="Arguments of the tool; incomplete if `max_tokens` was reached, empty where a block of a stream starts.",
        examples=[{"city": "Paris"}],
    )


Content = TextContent | ThinkingContent | ToolUseContent
_CONTENT = {"type": "text", "text": "A kind of"}


class AnthropicMessage(Answer):
    """A message. Where a stream starts, its content is empty."""

    id: str = Field(description="Unique identifier of the message.", examples=["msg_1"])
    type: Literal["message"] = Field(description="Type of the object.", examples=["message"])
    role: Literal["assistant"] = Field(description="Author of the message.", examples=["assistant"])
    model: str = Field(description="Name of the model, as given in the request.", examples=["tgi"])
    content: list[Content] = Field(description="Blocks of the message.", examples=[[_CONTENT]])
    stop_reason: StopReason | None = Field(description=_REASON, examples=["end_turn"])
    stop_sequence: str | None = Field(description=_STOP, examples=[None])
    usage: MessageUsage = Field(description="Token usage.", examples=[_USAGE])


class TokenCount(Answer):
    """The number of tokens of a conversation."""

    input_tokens: Count = Field(description="Number of tokens of the prompt.", examples=[7])


class MessageStart(Answer):
    """First event of a stream."""

    type: Literal["message_start"] = Field(description="Type of the event.", examples=["message_start"])
    message: AnthropicMessage = Field(
        description="The message, without content.",
        examples=[
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "tgi",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**_USAGE, "output_tokens": 0},
            }
        ],
    )


class ContentBlockStart(Answer):
    """A block of the message begins."""

    type: Literal["content_block_start"] = Field(description="Type of the event.", examples=["content_block_start"])
    index: Count = Field(description=_INDEX, examples=[0])
    content_block: Content = Field(description="The block, still empty.", examples=[{"type": "text", "text": ""}])


class TextDelta(Answer):
    """A piece of a text."""

    type: Literal["text_delta"] = Field(description="Type of the piece.", examples=["text_delta"])
    text: str = Field(description="The next piece of the text.", examples=[" kind"])


class ThinkingDelta(Answer):
    """A piece of the reasoning."""

    type: Literal["thinking_delta"] = Field(description="Type of the piece.", examples=["thinking_delta"])
    thinking: str = Field(description="The next piece of the reasoning.", examples=["The user"])


class SignatureDelta(Answer):
    """The signature of the reasoning."""

    type: Literal["signature_delta"] = Field(description="Type of the piece.", examples=["signature_delta"])
    signature: Literal["unsigned"] = Field(description="Always the same.", examples=["unsigned"])


class InputJsonDelta(Answer):
    """A piece of a tool's arguments."""

    type: Literal["input_json_delta"] = Field(description="Type of the piece.", examples=["input_json_delta"])
    partial_json: str = Field(description="The next piece of the arguments, as JSON text.", examples=['{"city"'])


class ContentBlockDelta(Answer):
    """A block of the message grows."""

    type: Literal["content_block_delta"] = Field(description="Type of the event.", examples=["content_block_delta"])
    index: Count = Field(description=_INDEX, examples=[0])
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta = Field(
        description="What the event adds to the block.", examples=[{"type": "text_delta", "text": " kind"}]
    )


class ContentBlockStop(Answer):
    """A block of the message ends."""

    type: Literal["content_block_stop"] = Field(description="Type of the event.", examples=["content_block_stop"])
    index: Count = Field(description=_INDEX, examples=[0])


class StopDelta(Answer):
    """Why a message ended."""

    stop_reason: StopReason = Field(description=_REASON, examples=["end_turn"])
    stop_sequence: str | None = Field(description=_STOP, examples=[None])


class MessageDelta(Answer):
    """The message is complete."""

    type: Literal["message_delta"] = Field(description="Type of the event.", examples=["message_delta"])
    delta: StopDelta = Field(description="Why the message ended.", examples=[{"stop_reason": "end_turn", "stop_sequence": None}])
    usage: MessageUsage = Field(description="Token usage of the message.", examples=[_USAGE])


class MessageStop(Answer):
    """Last event of a stream."""

    type: Literal["message_stop"] = Field(description="Type of the event.", examples=["message_stop"])


MessageEvents = (
    MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop | AnthropicErrorResponse
)
