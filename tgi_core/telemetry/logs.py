"""Log lines: plain text, or one JSON object per line. Never a prompt or an answer.

The text of an exception may quote what it failed on, so a traceback shows it only for the errors that this project words itself.
"""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tgi_core.backend import BackendError
from tgi_core.errors import StartupError
from tgi_core.telemetry.exchange import current
from tgi_core.telemetry.line_writer import LineWriter

_log = logging.getLogger("tgi_core.cli")

_OURS = (BackendError, StartupError, OSError)


class PlainFormatter(logging.Formatter):
    """One line per record, and the lines of a traceback. The fields of `record.span` stand in braces, as in TGI's lines."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as text."""
        when = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        span, about = getattr(record, "span", None), ""
        if isinstance(span, dict):
            shown = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in span.items() if name != "name")
            about = f"{span['name']}{{{shown}}}: "
        elif (request_id := _request_id()) is not None:
            about = f"request_id={request_id} "
        line = f"{when} {record.levelname} {about}{record.name}: {_one_line(record)}"
        return f"{line}\n{_traceback(record)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per record, in the shape of TGI's flattened JSON logs."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as JSON."""
        fields: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname,
            "message": record.getMessage().strip(),
            "target": record.name,
            "filename": record.filename,
            "line_number": record.lineno,
        }
        if (request_id := _request_id()) is not None:
            fields["request_id"] = request_id
        if (span := getattr(record, "span", None)) is not None:
            fields["span"] = span
        if record.exc_info:
            fields["exception"] = _traceback(record)
        return json.dumps(fields)


_writer = LineWriter()


class _Lines:
    """Where lines go: to standard error, unless a bar is shown there that must be moved out of their way."""

    def __init__(self) -> None:
        self.write: Callable[[str], object] = _writer.write

    def __call__(self, line: str) -> None:
        self.write(line)


_lines = _Lines()


class LineHandler(logging.Handler):
    """Each record is a line among those of `announce`."""

    def flush(self) -> None:
        """Wait a moment for lines that wait; the logging module asks for it when the process ends."""
        _writer.flush()

    def told(self, dropped: int) -> str:
        """The line that says how many were dropped."""
        text = "%d log lines were dropped: nobody read them, or they could not be written"
        return self.format(_log.makeRecord(_log.name, logging.WARNING, __file__, 0, text, (dropped,), None))

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        try:
            _lines(self.format(record))
        except Exception:  # noqa: BLE001  what logging's own handlers do: a log that cannot be written must not stop the work
            self.handleError(record)


@contextmanager
def lines_through(write: Callable[[str], object]) -> Iterator[None]:
    """Give all lines to `write` while the block runs. Not nested."""
    _lines.write = write
    try:
        yield
    finally:
        _lines.write = _writer.write


def set_up(json_output: bool) -> None:
    """Send the logs of this process to standard error; LOG_LEVEL sets the level."""
    handler = LineHandler()
    handler.setFormatter(JsonFormatter() if json_output else PlainFormatter())
    _writer.told = handler.told
    level = os.environ.get("LOG_LEVEL", "info").upper()
    logging.basicConfig(level=level if level in logging.getLevelNamesMapping() else "INFO", handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def pass_on(line: str) -> None:
    """Write a line that another process has written, among ours."""
    _lines(line.removesuffix("\n"))


def announce(line: str) -> None:
    """Tell whoever started the server something on standard error: as it is, or where logs are JSON as one of them."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        _log.info("%s", line)
    else:
        _lines(line)


def last_words(line: str) -> None:
    """Write why the process ends, below all that was written before; whoever reads it must, within a second."""
    _writer.write(line, last=True)
    _writer.flush()


def dropped_lines() -> int:
    """How many lines nobody will read."""
    return _writer.dropped


def _request_id() -> str | None:
    exchange = current()
    return None if exchange is None else exchange.request_id


def _one_line(record: logging.LogRecord) -> str:
    """The message, which cannot pass for several lines whatever it quotes."""
    text = record.getMessage().strip()
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _traceback(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return "" if error is None else "".join(_chain(error)).rstrip()


def _chain(error: BaseException) -> Iterator[str]:
    """As Python shows it, causes first, without texts that are not ours."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _chain(cause)
        yield "\nwhich led to:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}" + (f": {error}" if isinstance(error, _OURS) else "") + "\n"
    for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _chain(part)
