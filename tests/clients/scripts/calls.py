"""What the scripts of this folder share: a script is a list of calls, and prints one JSON line for each of them.

    python call_openai.py http://127.0.0.1:3000 KEY [NAME…]

With names, only those calls are made. No package is needed: each script runs in an environment that has its client and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from time import monotonic
from typing import Any

QUESTION = "What is the capital of France?"
"""The demo model knows the answer."""
ANSWER = "The capital of France is Paris."
PROMPT = "The capital of France is"
"""It completes this with a space and `Paris`."""

Call = Callable[[], Any]


class Script:
    """The calls of one client, in the order in which they are defined."""

    def __init__(self) -> None:
        self.url = sys.argv[1].rstrip("/")
        self.key = sys.argv[2]
        self._wanted = frozenset(sys.argv[3:])
        self._calls: dict[str, Call] = {}

    def call(self, made: Call) -> Call:
        """Decorates a function, plain or async, that makes a call and asserts what came; its docstring is what it shows."""
        self._calls[made.__name__] = made
        return made

    def run(self) -> None:
        """Makes the calls and ends the process: with 0 only if each showed what it claims."""
        unknown = self._wanted - self._calls.keys()
        if unknown:
            sys.exit(f"no such calls: {', '.join(sorted(unknown))}")
        results = [self._make(name, made) for name, made in self._calls.items() if not self._wanted or name in self._wanted]
        sys.exit(0 if results and all(results) else 1)

    def _make(self, name: str, made: Call) -> bool:
        ok, detail = True, inspect.getdoc(made) or ""
        started = monotonic()
        try:
            with redirect_stdout(sys.stderr):  # some clients print there
                asyncio.run(made()) if inspect.iscoroutinefunction(made) else made()
        except Exception:  # noqa: BLE001 - whatever a client raises is the result
            ok, detail = False, traceback.format_exc()
        print(json.dumps({"name": name, "ok": ok, "seconds": round(monotonic() - started, 3), "detail": detail}), flush=True)
        return ok


class Raised:
    """Holds the error that a block raised."""

    error: Any = None


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[Raised]:
    """The block must raise this kind of error, and not one of its subclasses."""
    raised = Raised()
    try:
        yield raised
    except kind as error:
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        raised.error = error
    else:
        raise AssertionError(f"no {kind.__name__}")
