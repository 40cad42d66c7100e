"""Chat templates: which one is used, with which variables, and the prompt that it renders, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2 import TemplateError, meta, nodes

from tgi_router.errors import TemplateFailed
from tgi_router.json_text import dumps
from tgi_router.openai_bodies import Message, Tool
from tgi_router.template_child import Draft, environment

DEFAULT = "default"
TOOL_USE = "tool_use"
"""The name under which models keep a template of its own for tools."""

_TRUSTED = ("system", "developer", "assistant")
"""Roles whose special tokens are meant: of the operator, and of the model, whose turn may be continued."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is to become a prompt. `note` is added to the last message, and the tools too where the template shows none."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    note: str = ""
    strict: bool = False
    """The template gets the variables that TGI passes, not those of transformers."""


class ChatTemplate:
    """One source. It is only parsed here, never compiled or run: that is for a process that can be ended."""

    def __init__(self, source: str) -> None:
        # TGI renders plain strings where such templates expect a list of parts
        self.source = source.replace("messages[0]['content'][0]['text']", "messages[0]['content']")

    @cached_property
    def _tree(self) -> nodes.Template:
        return environment().parse(self.source)

    def check(self) -> None:
        """Raises TemplateFailed when the template has a syntax error."""
        try:
            _ = self._tree
        except (TemplateError, RecursionError) as error:
            raise TemplateFailed(str(error)) from error

    @cached_property
    def uses_tools(self) -> bool:
        """Whether it shows tools itself."""
        return "tools" in meta.find_undeclared_variables(self._tree)

    @cached_property
    def uses_tool_calls(self) -> bool:
        """Whether it shows the tool calls of past messages itself."""
        getters = self._tree.find_all(nodes.Getattr), self._tree.find_all(nodes.Getitem), self._tree.find_all(nodes.Const)
        names = [getter.attr for getter in getters[0]] + [const.value for const in getters[2]]
        return "tool_calls" in names


class ChatTemplates:
    """A model's templates by their names, and the special tokens that they may use."""

    def __init__(self, sources: Mapping[str, str], bos_token: str | None = None, eos_token: str | None = None) -> None:
        self._templates = {name: ChatTemplate(source) for name, source in sources.items()}
        self._special = {"bos_token": bos_token, "eos_token": eos_token}

    def check(self) -> None:
        """Raises TemplateFailed when one of them has a syntax error."""
        for template in self._templates.values():
            template.check()

    def draft(self, conversation: Conversation, longest: int) -> Draft:
        """What makes the prompt, of at most `longest` characters. It goes on with the last message if that is the assistant's. Takes time
        in proportion to the conversation. Raises TemplateFailed."""
        template = self._choose(conversation)
        template.check()
        messages, tools = conversation.messages, _tools(conversation)
        turns = [_turn(message, conversation, template) for message in messages]
        appended = turns and conversation.tools
        return Draft(
            template.source,
            {"messages": turns, "add_generation_prompt": True, "tools": tools, **self._special},
            longest,
            [place for place, message in enumerate(messages) if message.role not in _TRUSTED],
            _appendix(conversation, None if template.uses_tools else tools) if appended else "",
            bool(turns) and turns[-1]["role"] == "assistant",
        )

    def _choose(self, conversation: Conversation) -> ChatTemplate:
        """The template for tools where there is one; TGI knows the default only."""
        name = TOOL_USE if conversation.tools and not conversation.strict else DEFAULT
        found = self._templates.get(name) or self._templates.get(DEFAULT)
        if found is None:
            raise TemplateFailed("template not found")
        return found


def _turn(message: Message, conversation: Conversation, template: ChatTemplate) -> dict[str, Any]:
    """A message as templates see it. TGI's see a role and a text only, and past tool calls as text."""
    if conversation.strict or message.tool_calls is None or not template.uses_tool_calls:
        turn: dict[str, Any] = {"role": message.role, "content": message.text}
    else:
        calls = [_call(call) for call in message.tool_calls]
        turn = {"role": message.role, "content": "" if message.content is None else message.text}
        turn["tool_calls"] = calls
    if not conversation.strict:
        named = {"name": message.name, "tool_call_id": message.tool_call_id}
        turn.update({key: value for key, value in named.items() if value is not None})
    return turn


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A past tool call with its arguments as an object, which is what templates print."""
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
    """What is added to the last message, in TGI's form: the tools, if the template does not show them, and the note."""
    lines = [*([] if tools is None else [dumps(tools)]), *([conversation.note] if conversation.note else [])]
    return "\n---\n" + "\n".join(lines) if lines else ""
