"""A process that renders chat templates: started as a script by `tgi_router.template_pool`, so it imports nothing but Jinja.

Jinja's sandbox keeps a template from the interpreter's insides, but bounds neither time nor memory: a loop of a loop runs for
minutes, and `10 ** 10 ** 8` holds the interpreter's lock all the while, so that no thread beside it could help. A process can be
ended. This one ends itself: the timer of a rendering has no handler, so its signal is the end even inside one long operation.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import struct
import sys
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2.0
"""Processor time of one rendering."""
MEMORY_BYTES = 1 << 30
"""Address space of the process."""
LONGEST_ERROR = 300
"""Characters of an error: templates like to quote what a message said."""
LENGTH = struct.Struct(">I")
"""What precedes each message: its length in bytes."""


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


def serve(channel: socket.socket) -> None:
    """Answer renderings until the other side is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    compiled: dict[str, Template] = {}
    stream = channel.makefile("rb")
    while head := stream.read(LENGTH.size):
        asked = json.loads(stream.read(*LENGTH.unpack(head)))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        source = asked["source"]
        try:
            template = compiled.get(source) or compiled.setdefault(source, environment().from_string(source))
            answer = render(template, asked["variables"], asked["longest"])
        except (TemplateError, ArithmeticError, MemoryError, RecursionError) as error:
            answer = {"error": str(error)}
        if "error" in answer:
            answer["error"] = answer["error"][:LONGEST_ERROR]
        data = json.dumps(answer).encode()  # what is not Unicode travels as escapes, and is refused by who asked
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(LENGTH.pack(len(data)) + data)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
