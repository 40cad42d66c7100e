"""Chat templates: from messages to a prompt, as transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tgi_router.bodies import Message
from tgi_router.errors import TemplateFailed


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


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A template and the special tokens that it may use. It is compiled when first used: a broken one spoils chat only."""

    def __init__(self, source: str, bos_token: str | None = None, eos_token: str | None = None) -> None:
        # TGI renders plain strings where such templates expect a list of parts
        self._source = source.replace("messages[0]['content'][0]['text']", "messages[0]['content']")
        self._special = {"bos_token": bos_token, "eos_token": eos_token}

    @cached_property
    def _compiled(self) -> Template:
        return _environment().from_string(self._source)

    def check(self) -> None:
        """Raises TemplateFailed when the template cannot be compiled."""
        try:
            _ = self._compiled
        except TemplateError as error:
            raise TemplateFailed(str(error)) from error

    def render(self, messages: Iterable[Message]) -> str:
        """The prompt. It goes on with the last message if that is the assistant's. Raises TemplateFailed."""
        turns = [{"role": message.role, "content": message.text} for message in messages]
        self.check()
        try:
            text = self._compiled.render(messages=turns, add_generation_prompt=True, tools=None, **self._special)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise TemplateFailed(str(error)) from error
        if turns and turns[-1]["role"] == "assistant":
            return _cut_after(text, turns[-1]["content"])
        return text


def _cut_after(text: str, content: str) -> str:
    """The rendered text up to the end of its last message, which templates may strip."""
    for wanted in (content, content.strip()):
        found = text.rfind(wanted)
        if found >= 0:
            return text[: found + len(wanted)]
    raise TemplateFailed("the template does not show the last message, which was to be continued")
