"""Conversion of requests of Anthropic's API to chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tgi_router.agent_fields import OF_MESSAGES
from tgi_router.anthropic_bodies import (
    ContentBlock,
    CountTokensBody,
    ImageSource,
    MessageParam,
    MessagesBody,
    OutputFormat,
    TextBlock,
    ToolChoiceParam,
    ToolParam,
)
from tgi_router.bodies import GrammarShape
from tgi_router.converted_chat import Converted, appended, function_call
from tgi_router.errors import ValidationFailed
from tgi_router.json_text import dumps
from tgi_router.openai_bodies import (
    ChatBody,
    FunctionDefinition,
    FunctionName,
    ImageUrl,
    Message,
    MessageChunk,
    NamedToolChoice,
    Tool,
)
from tgi_router.request_fields import unhonoured, warning
from tgi_router.tools import brief

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_READ = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image")


def chat_of(body: CountTokensBody) -> Converted:
    """Return the chat of a request. Raises ValidationFailed."""
    ignored = [*unhonoured(OF_MESSAGES, body.model_extra or {}), *_ignored(body)]
    choice, config = body.tool_choice, body.output_config
    thinking = body.thinking is not None and body.thinking.type != "disabled"
    chat = ChatBody(
        model=body.model,
        messages=_messages(body),
        tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=None if config is None or config.format is None else _shape(config.format),
        reasoning_effort=None if config is None else config.effort,
        chat_template_kwargs={"enable_thinking": thinking, "thinking": thinking},
        **(_sampling(body) if isinstance(body, MessagesBody) else {}),
    )
    return Converted(chat, warning(ignored))


def _sampling(body: MessagesBody) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in ("max_tokens", "stream", "temperature", "top_k", "top_p")}
    return {**given, "stop": body.stop_sequences}


def _ignored(body: CountTokensBody) -> Iterator[str]:
    """Yield the nested fields that have no effect."""
    thinking = body.thinking
    if thinking is not None and thinking.budget_tokens is not None:
        yield "thinking.budget_tokens"
    if thinking is not None and thinking.display not in (None, "summarized"):
        yield "thinking.display"


def _shape(format: OutputFormat) -> GrammarShape:
    return GrammarShape(type="json_schema", json_schema={"name": "output", "schema": format.schema_of_output})


def _tool(tool: ToolParam) -> Tool:
    if tool.type not in (None, "custom"):
        raise ValidationFailed(
            f"`tools` of the type `{brief(tool.type)}` are not supported; define a tool with an `input_schema`"
        )
    function = FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return Tool(type="function", function=function)


def _choice(choice: ToolChoiceParam) -> str | NamedToolChoice:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise ValidationFailed("`tool_choice` of the type `tool` must have a `name`")
    return NamedToolChoice(function=FunctionName(name=choice.name))


def _messages(body: CountTokensBody) -> list[Message]:
    if not body.messages:
        raise ValidationFailed("`messages` must have at least one message")
    messages: list[Message] = []
    if body.system:
        messages.append(Message(role="system", content=_texts(body.system)))
    for param in body.messages:
        for message in _turn(param):
            appended(messages, message)
    return messages


def _texts(content: str | Sequence[TextBlock]) -> list[MessageChunk]:
    """Return a string or text parts as parts of a message."""
    if isinstance(content, str):
        return [MessageChunk(type="text", text=content)]
    for block in content:
        if block.type != "text" or block.text is None:
            raise ValidationFailed(f"`messages`: content of the type `{brief(block.type)}` is not supported here; use `text`")
    return [MessageChunk(type="text", text=block.text) for block in content]


def _turn(param: MessageParam) -> Iterator[Message]:
    """Yield the messages of a turn: results of tools become messages of their own."""
    if isinstance(param.content, str):
        yield Message(role=param.role, content=_texts(param.content))
        return
    for block in param.content:
        if block.type not in _READ:
            raise ValidationFailed(
                f"`messages`: content of the type `{brief(block.type)}` is not supported; supported are {', '.join(_READ)}"
            )
    if param.role == "assistant":
        yield _assistant(param.content)
        return
    parts: list[MessageChunk] = []
    for block in param.content:
        if block.type == "tool_result":
            if parts:
                yield Message(role=param.role, content=parts)
                parts = []
            yield Message(role="tool", content=_result(block), tool_call_id=block.tool_use_id)
        elif block.type == "text":
            parts.append(MessageChunk(type="text", text=block.text))
        elif block.type == "image" and block.source is not None:
            parts.append(MessageChunk(type="image_url", image_url=ImageUrl(url=_url(block.source))))
        else:
            raise ValidationFailed(f"`messages`: only the assistant's turns can have content of the type `{block.type}`")
    if parts or not param.content:
        yield Message(role=param.role, content=parts)


def _url(source: ImageSource) -> str:
    """Return the URL of an image. Raises ValidationFailed."""
    if source.type == "base64" and source.data is not None and source.media_type is not None:
        return f"data:{source.media_type};base64,{source.data}"
    if source.type == "url" and source.url is not None:
        return source.url
    raise ValidationFailed(
        f"`messages`: an image's source of the type `{brief(source.type)}` is not supported; use `base64` with `media_type` and `data`, "
        "or `url`"
    )


def _result(block: ContentBlock) -> list[MessageChunk]:
    texts = _texts(block.content or "")
    return [MessageChunk(type="text", text="Error: "), *texts] if block.is_error else texts


def _assistant(content: Sequence[ContentBlock]) -> Message:
    for kind in ("tool_result", "image"):
        if any(block.type == kind for block in content):
            raise ValidationFailed(f"`messages`: only the user's turns can have content of the type `{kind}`")
    texts = [MessageChunk(type="text", text=block.text) for block in content if block.type == "text"]
    calls = [function_call(block.id or "", block.name or "", dumps(block.input)) for block in content if block.type == "tool_use"]
    thoughts = [block.thinking or "" for block in content if block.type == "thinking"]
    return Message(
        role="assistant",
        content=texts if texts or not calls else None,
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) or None,
    )
