"""A worker that renders chat templates: started as a script by `tgi_router.template_pool`, so it imports little but Jinja.

Jinja's sandbox keeps a template from the interpreter's insides, but bounds neither time nor memory: a loop of a loop runs for
minutes, and `10 ** 10 ** 8` holds the interpreter's lock all the while, so that no thread beside it could help. A process can be
ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tgi_core.literals import Hidden, LiteralTokens, Span
from tgi_core.workers.serving import serve

SECONDS = 2.0
"""Processor time of one rendering."""
MEMORY_BYTES = 1 << 30
"""Address space of the process."""
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


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation as it goes to a worker: a template's source and its variables."""

    source: str
    variables: dict[str, Any]
    longest: int
    """Characters of the prompt."""
    untrusted: list[int]
    """The messages in which special tokens are only text."""
    appendix: str
    """What is added to the last message."""
    continued: bool
    """Whether the prompt ends with the last message, for the model to go on with it."""

    def to_json(self) -> bytes:
        """For a worker. Raises RecursionError."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()


class Rejected(Exception):
    """There is no prompt; the text says why."""


_FAULTS = (
    Rejected, TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
)  # fmt: skip


def _text(template: Template, variables: dict[str, Any], longest: int) -> str:
    parts, room = [], longest
    for part in template.generate(variables):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise Rejected(f"the prompt is longer than {longest} characters")
    return "".join(parts)


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
        self._literals = LiteralTokens(())

    def greet(self, greeting: bytes) -> None:
        """Learn the model's special tokens, a list of texts in JSON."""
        self._literals = LiteralTokens(json.loads(greeting))

    def answer(self, request: bytes) -> bytes:
        """The answer to a draft, both in JSON. What is not Unicode travels as escapes, and is refused by who asked."""
        answer: dict[str, Any]
        try:
            text, spans = self._rendered(Draft(**json.loads(request)))
            answer = {"text": text, "literals": spans}
        except MemoryError:
            answer = {"error": "the template needs too much memory"}
        except _FAULTS as error:
            answer = {"error": str(error)[:LONGEST_ERROR]}
        return json.dumps(answer).encode()

    def _rendered(self, draft: Draft) -> tuple[str, tuple[Span, ...]]:
        template = self._compiled.get(draft.source)
        if template is None:
            template = self._compiled[draft.source] = environment().from_string(draft.source)
        hidden, turns = self._literals.hide(), draft.variables["messages"]
        self._prepare(draft, turns, hidden)
        text = _text(template, draft.variables, draft.longest)
        if draft.continued:
            cut = cut_after(text, turns[-1]["content"])
            if cut is None:
                raise Rejected("the template does not show the last message, which was to be continued")
            text = cut
        return hidden.reveal(text)

    def _prepare(self, draft: Draft, turns: list[dict[str, Any]], hidden: Hidden) -> None:
        """What a user, a tool or a stranger says cannot pose as a part of the template."""
        for place in draft.untrusted:
            turns[place]["content"] = hidden.take(turns[place]["content"])
        if draft.appendix:
            turns[-1]["content"] += draft.appendix


if __name__ == "__main__":
    renderer = Renderer()
    serve(renderer.answer, SECONDS, MEMORY_BYTES, renderer.greet)
