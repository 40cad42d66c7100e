"""Conversion of requests of OpenAI's Responses API to chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tgi_router.agent_fields import OF_RESPONSES
from tgi_router.bodies import GrammarShape
from tgi_router.converted_chat import Converted, appended, function_call
from tgi_router.errors import ValidationFailed
from tgi_router.openai_bodies import (
    AllowedTool,
    AllowedTools,
    AllowedToolsChoice,
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
from tgi_router.responses_bodies import (
    FunctionTool,
    InputItem,
    InputPart,
    ResponsesBody,
    TextFormat,
    ToolChoiceObject,
    ToolParam,
    full_name,
)
from tgi_router.tools import brief

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_LOGPROBS = "message.output_text.logprobs"
_STATELESS = (
    "`input`: items of the type `item_reference` are not supported: nothing is stored; send the items themselves, as clients do \
that are told `store: false`"
)


def chat_of(body: ResponsesBody) -> Converted:
    """Return the chat of a request. Raises ValidationFailed."""
    dropped = [*unhonoured(OF_RESPONSES, body.model_extra or {}), *_ignored(body)]
    effort = None if body.reasoning is None else body.reasoning.effort
    chat = ChatBody(
        model=body.model,
        messages=_messages(body),
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        tools=None if body.tools is None else [tool for param in body.tools for tool in _tools(param)],
        tool_choice=_choice(body.tool_choice) if isinstance(body.tool_choice, ToolChoiceObject) else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=None if body.text is None or body.text.format is None else _shape(body.text.format),
        reasoning_effort=None if effort == "none" else effort,
        chat_template_kwargs={"enable_thinking": False, "thinking": False} if effort == "none" else None,
    )
    return Converted(chat, warning(dropped))


def _ignored(body: ResponsesBody) -> Iterator[str]:
    """Yield the nested fields that have no effect. Raises ValidationFailed for one that is refused."""
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        yield "text.verbosity"
    if body.reasoning is not None and (body.reasoning.summary or body.reasoning.generate_summary):
        yield "reasoning.summary"
    for name in body.include or ():
        if name == _LOGPROBS:
            raise ValidationFailed(f"`include`: `{name}` is not supported; /v1/chat/completions returns log probabilities")
        yield f"include.{name}"


def _shape(format: TextFormat) -> GrammarShape:
    if format.type != "json_schema":
        return GrammarShape(type=format.type)
    if format.schema_of_text is None:
        raise ValidationFailed("`text.format` of the type `json_schema` must have a `schema`")
    return GrammarShape(type="json_schema", json_schema={"name": format.name or "output", "schema": format.schema_of_text})


def _tools(param: ToolParam) -> Iterator[Tool]:
    if param.type != "namespace":
        yield _tool(param)
        return
    if param.name is None:
        raise ValidationFailed("`tools` of the type `namespace` must have a `name`")
    for tool in param.tools or ():
        yield _tool(tool, param.name)


def _tool(tool: FunctionTool, namespace: str | None = None) -> Tool:
    if tool.type != "function":
        raise ValidationFailed(f"`tools` of the type `{brief(tool.type)}` are not supported; define a `function`")
    if tool.name is None:
        raise ValidationFailed("`tools` of the type `function` must have a `name`")
    name = full_name(namespace, tool.name)
    function = FunctionDefinition(name=name, description=tool.description, parameters=tool.parameters)
    return Tool(type="function", function=function)


def _choice(choice: ToolChoiceObject) -> NamedToolChoice | AllowedToolsChoice:
    if choice.type == "allowed_tools":
        allowed = [AllowedTool(function=_named(each.type, each.name)) for each in choice.tools or ()]
        tools = AllowedTools(mode=choice.mode or "auto", tools=allowed)
        return AllowedToolsChoice(type="allowed_tools", allowed_tools=tools)
    return NamedToolChoice(function=_named(choice.type, choice.name))


def _named(kind: str, name: str | None) -> FunctionName:
    if kind != "function":
        raise ValidationFailed(f"`tool_choice` of the type `{brief(kind)}` is not supported; choose a `function`")
    if name is None:
        raise ValidationFailed("`tool_choice` of the type `function` must have a `name`")
    return FunctionName(name=name)


def _messages(body: ResponsesBody) -> list[Message]:
    messages: list[Message] = []
    if body.instructions:
        messages.append(Message(role="system", content=_text(body.instructions)))
    if isinstance(body.input, str):
        return [*messages, Message(role="user", content=_text(body.input))]
    if not body.input:
        raise ValidationFailed("`input` must have at least one item")
    turn = _AssistantTurn()
    for item in body.input:
        if not turn.takes(item):
            messages += turn.end()
            appended(messages, _message(item))
    return [*messages, *turn.end()]


def _message(item: InputItem) -> Message:
    """Return an item that is not the assistant's as a message."""
    if item.type == "function_call_output":
        return Message(role="tool", content=_parts(item.output or ""), tool_call_id=item.call_id)
    if item.type == "message":
        return Message(role="system" if item.role == "developer" else item.role or "user", content=_parts(item.content or ""))
    if item.type == "item_reference":
        raise ValidationFailed(_STATELESS)
    raise ValidationFailed(f"`input`: items of the type `{brief(item.type)}` are not supported")


class _AssistantTurn:
    """Collects the items of one turn of the assistant: its reasoning, message and function calls."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._content: list[MessageChunk] | None = None
        self._calls: list[dict[str, Any]] = []

    def takes(self, item: InputItem) -> bool:
        """Add an item, if it is the assistant's."""
        if item.type == "reasoning":
            self._thoughts += [part.text or "" for part in _parts(item.content or item.summary or "")]
        elif item.type == "function_call":
            self._calls.append(
                function_call(item.call_id or "", full_name(item.namespace, item.name or ""), item.arguments or "")
            )
        elif item.type == "message" and item.role == "assistant":
            self._content = [*(self._content or ()), *_parts(item.content or "")]
        else:
            return False
        return True

    def end(self) -> Iterator[Message]:
        """Yield the turn, if there is any, and begin another one."""
        if self._content is not None or self._calls:
            yield Message(
                role="assistant",
                content=self._content,
                tool_calls=self._calls or None,
                reasoning_content="".join(self._thoughts) or None,
            )
        self._thoughts, self._content, self._calls = [], None, []


def _text(text: str) -> list[MessageChunk]:
    return [MessageChunk(type="text", text=text)]


def _parts(content: str | Sequence[InputPart]) -> list[MessageChunk]:
    return _text(content) if isinstance(content, str) else [_part(part) for part in content]


def _part(part: InputPart) -> MessageChunk:
    if part.type == "refusal":
        return MessageChunk(type="refusal", refusal=part.refusal or "")
    if part.type == "input_image":
        if part.image_url is None:
            raise ValidationFailed(
                "`input`: content of the type `input_image` must have an `image_url`; no files are stored here"
            )
        return MessageChunk(type="image_url", image_url=ImageUrl(url=part.image_url))
    if part.type not in _TEXTS:
        raise ValidationFailed(f"`input`: content of the type `{brief(part.type)}` is not supported; use `input_text`")
    return MessageChunk(type="text", text=part.text or "")
