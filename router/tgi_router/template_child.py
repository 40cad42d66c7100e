"""A worker process that renders chat templates; `tgi_router.template_pool` runs it as a script, so it imports little but Jinja.

Jinja's sandbox keeps templates away from the interpreter's internals, but limits neither time nor memory: a nested loop can run
for minutes, and `10 ** 10 ** 8` holds the GIL throughout, so no other thread could intervene. A process can be killed.
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
"""Limit of CPU time per rendering, in seconds."""
MEMORY_BYTES = 1 << 30
"""Limit of the process's address space, in bytes."""
LONGEST_ERROR = 300
"""Maximum length of an error message, in characters: templates often quote the messages of a chat in errors."""


class _GenerationTag(Extension):
    """The tag `{% generation %}`, which marks assistant text for training; renders only its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by the library)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(text: str) -> str:
    return datetime.now().strftime(text)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Render JSON. Unlike Jinja's own filter, does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def environment() -> ImmutableSandboxedEnvironment:
    """Create a Jinja environment configured for chat templates as in transformers."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@dataclass(frozen=True, slots=True)
class TemplateJob:
    """A chat as sent to a worker: the source of a template and its variables."""

    source: str
    variables: dict[str, Any]
    longest: int
    """Maximum length of the prompt, in characters."""
    untrusted: list[int]
    """Messages in which special tokens are plain text."""
    appendix: str
    """Text appended to the last message."""
    continued: bool
    """Whether the prompt ends with the last message, which the model continues."""
    further: dict[str, Any]
    """Variables from the client, in which special tokens are plain text. `variables` take precedence."""

    def to_json(self) -> bytes:
        """Encode for a worker. Raises RecursionError."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()


class Rejected(Exception):
    """Rendering failed; the message says why."""


_FAULTS = (
    Rejected, TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
)  # fmt: skip


def _hidden(value: Any, hidden: Hidden) -> Any:
    """Replace special tokens in all strings of a JSON value."""
    if isinstance(value, str):
        return hidden.take(value)
    if isinstance(value, dict):
        return {key: _hidden(each, hidden) for key, each in value.items()}
    return [_hidden(each, hidden) for each in value] if isinstance(value, list) else value


def _text(template: Template, variables: dict[str, Any], longest: int) -> str:
    parts, room = [], longest
    for part in template.generate(variables):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise Rejected(f"the prompt is longer than {longest} characters")
    return "".join(parts)


def _last_text(content: str | list[dict[str, str]]) -> str:
    """Return the text with which a content ends."""
    return content if isinstance(content, str) else content[-1].get("text", "")


def cut_after(text: str, content: str) -> str | None:
    """Cut a rendered text after its last message, whose whitespace templates may strip; None if the text does not contain it.

    Searches the reversed text, because `str.find` takes linear time, but `str.rfind` the product of both lengths.
    """
    backwards = text[::-1]
    for wanted in (content, content.strip()):
        found = backwards.find(wanted[::-1])
        if found >= 0:
            return text[: len(text) - found]
    return None


class Renderer:
    """Renders drafts. A model has few templates; each is compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, Template] = {}
        self._literals = LiteralTokens(())

    def greet(self, greeting: bytes) -> None:
        """Set the model's special tokens, a JSON list of texts."""
        self._literals = LiteralTokens(json.loads(greeting))

    def answer(self, request: bytes) -> bytes:
        """Render a job; both the job and the result are JSON. Lone surrogates are sent as escapes, and rejected by the
        parent."""
        answer: dict[str, Any]
        try:
            text, spans = self._rendered(TemplateJob(**json.loads(request)))
            answer = {"text": text, "literals": spans}
        except MemoryError:
            answer = {"error": "the template needs too much memory"}
        except _FAULTS as error:
            answer = {"error": str(error)[:LONGEST_ERROR]}
        return json.dumps(answer).encode()

    def _rendered(self, job: TemplateJob) -> tuple[str, tuple[Span, ...]]:
        template = self._compiled.get(job.source)
        if template is None:
            template = self._compiled[job.source] = environment().from_string(job.source)
        hidden, turns = self._literals.hide(), job.variables["messages"]
        self._prepare(job, turns, hidden)
        text = _text(template, {**_hidden(job.further, hidden), **job.variables}, job.longest)
        if job.continued:
            cut = cut_after(text, _last_text(turns[-1]["content"]))
            if cut is None:
                raise Rejected("the template does not show the last message, which was to be continued")
            text = cut
        return hidden.reveal(text)

    def _prepare(self, job: TemplateJob, turns: list[dict[str, Any]], hidden: Hidden) -> None:
        """Replace special tokens in untrusted messages, which must not pass for a part of the template."""
        for place in job.untrusted:
            turns[place]["content"] = _hidden(turns[place]["content"], hidden)
        if job.appendix:
            content = turns[-1]["content"]
            turns[-1]["content"] = (
                content + job.appendix if isinstance(content, str) else [*content, {"type": "text", "text": job.appendix}]
            )


if __name__ == "__main__":
    renderer = Renderer()
    serve(renderer.answer, SECONDS, MEMORY_BYTES, renderer.greet)
