"""Logging as plain text or one JSON object per line: formatters and their fields. Prompts and answers are never logged.

Exception messages may quote user input, so tracebacks include them only for exception types whose messages are known to be safe.
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
from tgi_core.telemetry.line_writer import LineWriter
from tgi_core.telemetry.request_record import current

_log = logging.getLogger("tgi_core.cli")

_OURS = (BackendError, StartupError, OSError)


class PlainFormatter(logging.Formatter):
    """One line per record, plus its traceback. The fields of `record.span` are in braces, as in TGI's log lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as text."""
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
    """One JSON object per record, in the format of TGI's flattened JSON logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as JSON."""
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
    """Destination of log lines: standard error, or a progress bar that prints lines above itself."""

    def __init__(self) -> None:
        self.write: Callable[[str], object] = _writer.write

    def __call__(self, line: str) -> None:
        self.write(line)


_lines = _Lines()


class LineHandler(logging.Handler):
    """Writes records to the same destination as `announce`."""

    def flush(self) -> None:
        """Wait briefly for queued lines. The logging module calls this at exit."""
        _writer.flush()

    def told(self, dropped: int) -> str:
        """Format the message about dropped lines."""
        text = "%d log lines were dropped because standard error was not read or could not be written"
        return self.format(_log.makeRecord(_log.name, logging.WARNING, __file__, 0, text, (dropped,), None))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            _lines(self.format(record))
        except Exception:  # noqa: BLE001  like logging's own handlers: logging errors must not stop the server
            self.handleError(record)


@contextmanager
def lines_through(write: Callable[[str], object]) -> Iterator[None]:
    """Redirect all lines to `write` while the block runs. Not reentrant."""
    _lines.write = write
    try:
        yield
    finally:
        _lines.write = _writer.write


def set_up(json_output: bool) -> None:
    """Log to standard error; LOG_LEVEL sets the level."""
    handler = LineHandler()
    handler.setFormatter(JsonFormatter() if json_output else PlainFormatter())
    _writer.told = handler.told
    level = os.environ.get("LOG_LEVEL", "info").upper()
    logging.basicConfig(level=level if level in logging.getLevelNamesMapping() else "INFO", handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def pass_on(line: str) -> None:
    """Forward a log line of another process."""
    _lines(line.removesuffix("\n"))


def announce(line: str) -> None:
    """Print a message for the operator to standard error: plain, or as a log record if logs are JSON."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        _log.info("%s", line)
    else:
        _lines(line)


def log_fatal_error(line: str) -> None:
    """Write the final error message after all earlier lines, waiting up to a second."""
    _writer.write(line, last=True)
    _writer.flush()


def dropped_lines() -> int:
    """Number of dropped log lines."""
    return _writer.dropped


def _request_id() -> str | None:
    record = current()
    return None if record is None else record.request_id


def _one_line(record: logging.LogRecord) -> str:
    """Escape control characters in the message, so that quoted text cannot fake further log lines."""
    text = record.getMessage().strip()
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _traceback(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return "" if error is None else "".join(_chain(error)).rstrip()


def _chain(error: BaseException) -> Iterator[str]:
    """Format an exception chain like Python, causes first, without unsafe messages."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _chain(cause)
        yield "\nwhich led to:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}" + (f": {error}" if isinstance(error, _OURS) else "") + "\n"
    for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _chain(part)
