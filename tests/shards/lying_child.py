"""Run in each process of a server by way of `sitecustomize`: each shard in turn tells one lie, then is true no more, since it is dead.

The lies still to be told are files in the folder that the environment names; whoever takes one away tells it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "TGI_TEST_LIES"


def lacking(message: Any) -> None:
    """Without the last row."""
    for column in (message.result.request_ids, message.result.ids, message.result.texts, message.result.logprobs):
        del column[-1]


def renamed(message: Any) -> None:
    """The first row under another name."""
    message.result.request_ids[0] = 9999


def other_step(message: Any) -> None:
    """Rows of another step."""
    message.result.step += 1


def infinite(message: Any) -> None:
    """A logprob that is none."""
    message.result.logprobs[0] = float("inf")


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "empty": (lambda message: message.Clear(), "it lacks the rows of step"),
    "lacking": (lacking, "it lacks the row of request|has all of its tokens"),
    "renamed": (renamed, "it lacks the row of request|a row of request 9999"),
    "another step": (other_step, "in place of step"),
    "infinite": (infinite, "a logprob that is not a number"),
}
"""What is done to an answer with rows, and the reason that the router gives."""


def install() -> None:
    """Lie, if this is a shard and there is a lie left."""
    folder = os.environ.get(FOLDER)
    if folder is None or "shard" not in sys.argv[:5]:
        return
    from tgi_core.proto.generate.v3 import generate_pb2 as pb
    from tgi_core.server import steps_link

    taken = min(Path(folder).iterdir(), default=None)
    if taken is None:
        return
    taken.unlink()
    lie, steps, true = LIES[taken.name.partition(" ")[2]][0], [0], steps_link.encode_result

    def encode(result: Any) -> pb.TurnResult:
        message = true(result)
        steps[0] += bool(message.result.request_ids) and not message.result.finished
        if steps[0] == 5:
            lie(message)
        return message

    steps_link.encode_result = encode
