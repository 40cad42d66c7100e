"""Log lines: plain text, or one JSON object per line. Never a prompt or an answer."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """One JSON object per record, in the shape of TGI's flattened JSON logs."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as JSON."""
        fields: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname,
            "message": record.getMessage(),
            "target": record.name,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up(json_output: bool) -> None:
    """Send the logs of this process to standard error; LOG_LEVEL sets the level."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    handler.setFormatter(JsonFormatter() if json_output else plain)
    level = os.environ.get("LOG_LEVEL", "info").upper()
    logging.basicConfig(level=level if level in logging.getLevelNamesMapping() else "INFO", handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
