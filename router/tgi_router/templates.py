"""Chat templates: selection, variables and rendering, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jinja2 import TemplateError, meta, nodes

from tgi_router.errors import TemplateFailed
from tgi_router.json_text import dumps
from tgi_router.openai_bodies import Message, Tool
from tgi_router.reasoning import ReasoningTags, reasoning_tags
from tgi_router.template_child import TemplateJob, environment

DEFAULT = "default"
TOOL_USE = "tool_use"
"""Name of a model's separate template for tools."""

_TRUSTED = ("system", "developer", "assistant")
"""Roles whose special tokens are interpreted: the operator's, and the model's, whose turn may be continued."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat to render. `note` is appended to the last message, and so are the tools if the template does not render them."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    note: str = ""
    strict: bool = False
    """Whether the template gets the variables of TGI instead of those of transformers."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables, from the client. Those of the chat itself take precedence."""


class ChatTemplate:
    """A template source. It is only parsed here, not compiled or run: that happens in a process that can be killed."""

    def __init__(self, source: str) -> None:
        self._given = source

    @cached_property
    def source(self) -> str:
        """The source to render. TGI renders strings, even if the template expects a list of parts for the first message."""
        return (
            self._given.replace("messages[0]['content'][0]['text']", "messages[0]['content']")
            if self.takes_strings
            else self._given
        )

    @cached_property
    def _tree(self) -> nodes.Template:
        return environment().parse(self._given)

    def check(self) -> None:
        """Parse a source. Raises TemplateFailed for a syntax error."""
        try:
            _ = self._tree
        except (TemplateError, RecursionError) as error:
            raise TemplateFailed(str(error)) from error

    @cached_property
    def uses_tools(self) -> bool:
        """Whether the template renders tools."""
        return "tools" in meta.find_undeclared_variables(self._tree)

    @cached_property
    def uses_tool_calls(self) -> bool:
        """Whether the template renders the tool calls of past messages."""
        getters = self._tree.find_all(nodes.Getattr), self._tree.find_all(nodes.Getitem), self._tree.find_all(nodes.Const)
        names = [getter.attr for getter in getters[0]] + [const.value for const in getters[2]]
        return "tool_calls" in names

    @cached_property
    def takes_strings(self) -> bool:
        """Whether the template renders contents that are strings, besides lists of parts. One that looks for images in a content, and does
        not ask whether it is a string, renders lists alone."""
        constants = {const.value for const in self._tree.find_all(nodes.Const) if isinstance(const.value, str)}
        tests = {test.name for test in self._tree.find_all(nodes.Test)}
        return not constants & {"image", "image_url"} or "string" in tests


class ChatTemplates:
    """A model's templates by name, and the special tokens that they may use."""

    def __init__(self, sources: Mapping[str, str], bos_token: str | None = None, eos_token: str | None = None) -> None:
        self._templates = {name: ChatTemplate(source) for name, source in sources.items()}
        self._special = {"bos_token": bos_token, "eos_token": eos_token}

    def check(self) -> None:
        """Parse all sources. Raises TemplateFailed for a syntax error."""
        for template in self._templates.values():
            template.check()

    @cached_property
    def reasoning(self) -> ReasoningTags | None:
        """The tags around the model's reasoning, if it reasons."""
        return reasoning_tags(template.source for template in self._templates.values())

    def job(self, conversation: Conversation, longest: int) -> TemplateJob:
        """Create the job that renders a prompt of at most `longest` characters. The prompt continues the last message if that is the
        assistant's. Takes time in proportion to the chat. Raises TemplateFailed."""
        template = self._choose(conversation)
        template.check()
        messages, tools = conversation.messages, _tools(conversation)
        turns = [_turn(message, conversation, template) for message in messages]
        appended = turns and conversation.tools
        further = {} if conversation.strict else dict(conversation.variables)
        return TemplateJob(
            template.source,
            {"messages": turns, "add_generation_prompt": True, "tools": tools, **self._special},
            longest,
            [place for place, message in enumerate(messages) if message.role not in _TRUSTED],
            _appendix(conversation, None if template.uses_tools else tools) if appended else "",
            bool(turns) and turns[-1]["role"] == "assistant",
            further,
        )

    def _choose(self, conversation: Conversation) -> ChatTemplate:
        """Return the template for tools, if there is one and it is needed; TGI uses only the default."""
        name = TOOL_USE if conversation.tools and not conversation.strict else DEFAULT
        found = self._templates.get(name) or self._templates.get(DEFAULT)
        if found is None:
            raise TemplateFailed("template not found")
        return found


def _turn(message: Message, conversation: Conversation, template: ChatTemplate) -> dict[str, Any]:
    """Return a message as passed to templates. TGI passes only a role and a text, with past tool calls as text."""
    if conversation.strict or message.tool_calls is None or not template.uses_tool_calls:
        turn: dict[str, Any] = {"role": message.role, "content": message.text}
    else:
        calls = [_call(call) for call in message.tool_calls]
        turn = {"role": message.role, "content": "" if message.content is None else message.text}
        turn["tool_calls"] = calls
    if message.image_urls:
        turn["content"] = message.parts
    elif not template.takes_strings:
        turn["content"] = [{"type": "text", "text": turn["content"]}]
    if not conversation.strict:
        named = {name: getattr(message, name) for name in ("name", "tool_call_id", "reasoning_content")}
        turn.update({key: value for key, value in named.items() if value is not None})
    return turn


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a past tool call with its arguments as an object, which is what templates expect."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(conversation: Conversation) -> list[dict[str, Any]] | None:
    if not conversation.tools:
        return None
    return [{"type": "function", "function": _function(tool, conversation.strict)} for tool in conversation.tools]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    function = tool.function
    if strict:
        return {"description": function.description, "name": function.name, "arguments": dumps(function.schema_of_arguments)}
    described = {} if function.description is None else {"description": function.description}
    given = function.schema_of_arguments
    parameters = {"type": "object", "properties": {}} if given is None else given
    return {"name": function.name, **described, "parameters": parameters}


def _appendix(conversation: Conversation, tools: list[dict[str, Any]] | None) -> str:
    """Return the text to append to the last message, in TGI's format: the tools, if the template does not render them, and the
    note."""
    lines = [*([] if tools is None else [dumps(tools)]), *([conversation.note] if conversation.note else [])]
    return "\n---\n" + "\n".join(lines) if lines else ""
