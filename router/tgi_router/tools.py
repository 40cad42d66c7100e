"""Tool choice: which tools the model may or must call, and the grammar that enforces it.

A call has the format `{"name": …, "arguments": {…}}`, on which most models are trained. If the client demands a call (`required`,
or a function by name), a grammar allows nothing else. With `auto`, the model is unconstrained: it generates text or a call, which
`tgi_router.tool_calls` recognizes; with a `response_format`, a grammar allows a call or an answer in that format. TGI forces a call
in that case, too, to a function that stands for "no tool", and then generates the text in a second run; that doubles the cost of
every plain response and deprives the model of its own format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tgi_core.grammar import Grammar, GrammarKind
from tgi_router.errors import ToolFailed
from tgi_router.openai_bodies import AllowedToolsChoice, ChatBody, NamedToolChoice, Tool

MAX_TOOLS = 128
"""OpenAI's limit."""
MAX_CALLS = 16
"""Maximum number of calls in a response that is constrained to calls."""

TOOL_PROMPT = (
    "You can call the functions described above. To call one, answer with nothing but a JSON object of the form "
    '{"name": function name, "arguments": object with its arguments}. Use values, not variables.'
)
"""Instruction for models whose template does not mention tools."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum", "default", "examples")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a request may use. `schema` constrains the response; None leaves it unconstrained."""

    tools: Sequence[Tool]
    schema: dict[str, Any] | None

    @property
    def names(self) -> frozenset[str]:
        """Names of the functions that may be called."""
        return frozenset(tool.function.name for tool in self.tools)


def plan_tools(body: ChatBody, answer: Grammar | None = None) -> ToolUse | None:
    """Return the tool use of a request; None for plain chat. `answer` constrains a response that is not a tool call. Raises
    ToolFailed."""
    choice = body.tool_choice
    if choice == "none" or (not body.tools and choice in (None, "auto", "required")):
        return None
    tools = body.tools or []
    if len(tools) > MAX_TOOLS:
        raise ToolFailed(f"at most {MAX_TOOLS} tools are supported. Given: {len(tools)}")
    if isinstance(choice, AllowedToolsChoice):
        tools = [_named(tools, each.function.name) for each in choice.allowed_tools.tools]
        choice = choice.allowed_tools.mode
        if not tools:
            raise ToolFailed("`allowed_tools` names no tool; `tool_choice: none` allows none")
    several = body.parallel_tool_calls is not False
    if choice in (None, "auto"):
        return ToolUse(tools, None if answer is None else _call_or_answer(tools, several, answer))
    if choice == "required":
        return ToolUse(tools, _schema(tools, several))
    name = choice.function.name if isinstance(choice, NamedToolChoice) else choice
    named = [_named(tools, name)]
    return ToolUse(named, _schema(named, several=False))


def _named(tools: Sequence[Tool], name: str) -> Tool:
    for tool in tools:
        if tool.function.name == name:
            return tool
    raise ToolFailed(f"Tool with name {brief(name)} not found")


def _call_or_answer(tools: Sequence[Tool], several: bool, answer: Grammar) -> dict[str, Any]:
    """Return the schema of calls, or of an answer that has a schema of its own."""
    if answer.kind is not GrammarKind.JSON:
        raise ToolFailed(
            f"`tools` cannot be combined with a `response_format` of the type `{answer.kind.value}` unless `tool_choice` is set"
        )
    calls = _schema(tools, several)
    definitions = {**calls.pop("$defs"), "answer": _moved(json.loads(answer.source), "#/$defs/answer")}
    return {"anyOf": [calls, {"$ref": "#/$defs/answer"}], "$defs": definitions}


def brief(name: str) -> str:
    """Shorten a name for an error message: the client may have sent a megabyte."""
    return name if len(name) <= 64 else f"{name[:64]}…"


def _schema(tools: Sequence[Tool], several: bool) -> dict[str, Any]:
    """Return the schema of one call, or of a list of calls."""
    definitions = {f"f{place}": _parameters(tool, f"#/$defs/f{place}") for place, tool in enumerate(tools)}
    calls = [_call_schema(tool.function.name, f"#/$defs/f{place}") for place, tool in enumerate(tools)]
    call: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if not several:
        return {**call, "$defs": definitions}
    definitions["call"] = call
    one = {"$ref": "#/$defs/call"}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": MAX_CALLS}], "$defs": definitions}


def _call_schema(name: str, reference: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": reference}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _parameters(tool: Tool, root: str) -> dict[str, Any]:
    """Return a function's schema as one definition among others."""
    given = tool.function.schema_of_arguments
    if given is None or given == {}:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(given, dict):
        raise ToolFailed(f"`parameters` of {brief(tool.function.name)} must be a JSON schema")
    try:
        schema = _moved(given, root)
    except RecursionError:
        raise ToolFailed(f"`parameters` of {brief(tool.function.name)} is nested too deep") from None
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}


def _moved(schema: Any, root: str) -> Any:
    """Return a schema with references to its own root redirected to its new location."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = root + value[1:]
        elif key in _MAPS and isinstance(value, dict):
            moved[key] = {name: _moved(each, root) for name, each in value.items()}
        else:
            moved[key] = value if key in _VALUES else _moved(value, root)
    return moved
