"""Tools: which of them the model may or must call, and the grammar that holds it to that.

A call is written as `{"name": …, "arguments": {…}}`, the form that most models are trained to write. Where the client demands a call
(`required`, or a function by name) a grammar allows nothing else. With `auto` the model is free: it answers in words, or it starts
a call, which `tgi_router.tool_calls` recognizes. TGI forces a call there too, to a function that stands for "no tool", and then
generates the answer a second time; that doubles the price of every plain answer and takes the model's own format from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tgi_router.errors import ToolFailed
from tgi_router.openai_bodies import ChatBody, NamedToolChoice, Tool

MAX_TOOLS = 128
"""OpenAI's own limit."""
MAX_CALLS = 16
"""Calls in one answer that is held to calls."""

TOOL_PROMPT = (
    "You can call the functions described above. To call one, answer with nothing but a JSON object of the form "
    '{"name": function name, "arguments": object with its arguments}. Use values, not variables.'
)
"""Told to the model where its template says nothing of tools."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum", "default", "examples")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a request may use. `schema` is what the answer must be, None where it may be anything."""

    tools: Sequence[Tool]
    schema: dict[str, Any] | None

    @property
    def names(self) -> frozenset[str]:
        """The functions that may be called."""
        return frozenset(tool.function.name for tool in self.tools)


def plan_tools(body: ChatBody) -> ToolUse | None:
    """What becomes of a request's tools; None for plain chat. Raises ToolFailed."""
    choice = body.tool_choice
    if choice == "none" or (not body.tools and choice in (None, "auto", "required")):
        return None
    tools = body.tools or []
    if len(tools) > MAX_TOOLS:
        raise ToolFailed(f"at most {MAX_TOOLS} tools are supported. Given: {len(tools)}")
    if choice in (None, "auto"):
        return ToolUse(tools, None)
    if choice == "required":
        return ToolUse(tools, _schema(tools, several=body.parallel_tool_calls is not False))
    name = choice.function.name if isinstance(choice, NamedToolChoice) else choice
    named = [tool for tool in tools if tool.function.name == name][:1]
    if not named:
        raise ToolFailed(f"Tool with name {_brief(name)} not found")
    return ToolUse(named, _schema(named, several=False))


def _brief(name: str) -> str:
    """A client's name in an error, which does not repeat a megabyte of it."""
    return name if len(name) <= 64 else f"{name[:64]}…"


def _schema(tools: Sequence[Tool], several: bool) -> dict[str, Any]:
    """One call, or a list of them."""
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
    """A function's schema as one definition among others."""
    given = tool.function.schema_of_arguments
    if given is None or given == {}:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(given, dict):
        raise ToolFailed(f"`parameters` of {_brief(tool.function.name)} must be a JSON schema")
    try:
        schema = _moved(given, root)
    except RecursionError:
        raise ToolFailed(f"`parameters` of {_brief(tool.function.name)} is nested too deep") from None
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}


def _moved(schema: Any, root: str) -> Any:
    """A schema whose references to its own root lead to where it now is."""
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
