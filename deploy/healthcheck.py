"""The image's HEALTHCHECK: exit status 0 while the server answers at /health."""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection


def main() -> int:
    """Ask the server of this container, at the port that its environment names."""
    connection = HTTPConnection("127.0.0.1", int(os.environ.get("PORT", "80")), timeout=5)
    try:
        connection.request("GET", "/health")
        return int(connection.getresponse().status != 200)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
