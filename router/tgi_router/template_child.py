"""A worker that renders chat templates: started as a script by `tgi_router.template_pool`, so it imports little but Jinja.

Jinja's sandbox keeps a template from the interpreter's insides, but bounds neither time nor memory: a loop of a loop runs for
minutes, and `10 ** 10 ** 8` holds the interpreter's lock all the while, so that no thread beside it could help. A process can be
ended.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tgi_core.workers.serving import serve

SECONDS = 2.0
"""Processor time of one rendering."""
MEMORY_BYTES = 1 << 30
"""Address space of the process."""
NOT_SHOWN = "the template does not show the last message, which was to be continued"
LONGEST_ERROR = 300
"""Characters of an error: templates like to quote what a message said."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant said, for training; here its body is all that counts."""

    tags = {"generation"}  # noqa: RUF012 (declared so by the library)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(text: str) -> str:
    return datetime.now().strftime(text)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Unlike Jinja's own filter this escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def render(template: Template, variables: dict[str, Any], longest: int) -> dict[str, str]:
    """The text, or what is wrong."""
    parts, room = [], longest
    try:
        for part in template.generate(variables):
            parts.append(part)
            room -= len(part)
            if room < 0:
                return {"error": f"the prompt is longer than {longest} characters"}
        return {"text": "".join(parts)}
    except MemoryError:
        return {"error": "the template needs too much memory"}
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        return {"error": str(error)}


def cut_after(text: str, content: str) -> str | None:
    """A rendered text up to the end of its last message, which templates may strip; None if it does not show it.

    Reversed, because `str.find` takes linear time, and `str.rfind` the product of both lengths.
    """
    backwards = text[::-1]
    for wanted in (content, content.strip()):
        found = backwards.find(wanted[::-1])
        if found >= 0:
            return text[: len(text) - found]
    return None


class Renderer:
    """Renders what it is asked to; a model has few templates, each of which is compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, Template] = {}

    def answer(self, request: bytes) -> bytes:
        """The answer to one request, both in JSON. What is not Unicode travels as escapes, and is refused by who asked."""
        asked = json.loads(request)
        try:
            told = self._rendered(asked["source"], asked["variables"], asked["longest"])
            if "text" in told and asked["continued"] is not None:
                cut = cut_after(told["text"], asked["continued"])
                told = {"error": NOT_SHOWN} if cut is None else {"text": cut}
        except (TemplateError, ArithmeticError, MemoryError, RecursionError) as error:
            told = {"error": str(error)}
        if "error" in told:
            told["error"] = told["error"][:LONGEST_ERROR]
        return json.dumps(told).encode()

    def _rendered(self, source: str, variables: dict[str, Any], longest: int) -> dict[str, str]:
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = environment().from_string(source)
        return render(template, variables, longest)


if __name__ == "__main__":
    serve(Renderer().answer, SECONDS, MEMORY_BYTES)
