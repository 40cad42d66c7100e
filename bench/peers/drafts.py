"""Servers with and without n-gram drafts on the same work: answers that copy their prompt, copy it with changes, or repeat nothing.

The model writes token t + 1 after token t, in loops or without end (`random_model.make_looping`), so every server writes the same
answers, and drafts are right where the prompt agrees. Each server drafts up to `DRAFTS` tokens where the last two or more tokens occurred
before. All servers run at once, with and without drafts, and take turns.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.peers.http import SERVERS, START_S, ids_body, measure_asks, shown
from bench.peers.offline import SETTLE_S, Save
from bench.peers.venvs import HOME
from bench.random_model import LOOPS_END, WRAP
from bench.serving.server import Server, ServerError
from tgi_core.benchmark.generator import Ask
from tgi_core.benchmark.load import LoadError, openai_count

DRAFTS = 8
NEW = WRAP
EVERY = 8
"""Of an edited text, one token in so many differs."""
FLAGS = {
    "ours": ["--speculate", str(DRAFTS)],
    "vLLM serve": [
        "--speculative-config",
        json.dumps({"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_min": 2, "prompt_lookup_max": DRAFTS}),
    ],
    "llama-server": ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", str(DRAFTS)],
}
"""What switches a server's drafts on."""
KINDS = ("copied", "edited", "new")


def prompt(kind: str, turn: int) -> list[int]:
    """Token ids of a prompt that no other turn has a part of. The answer to it is a whole loop, or follows no token of the prompt."""
    draw = random.Random(f"{kind} {turn}")
    first = WRAP * (3 + KINDS.index(kind) + len(KINDS) * turn)
    if kind == "new":
        return [*draw.sample(range(LOOPS_END - 4000, LOOPS_END), WRAP - 1), LOOPS_END + 1000 + 200 * turn]
    loop = list(range(first, first + WRAP))
    for place in range(EVERY - 1, WRAP - 1, EVERY) if kind == "edited" else ():
        loop[place] = draw.randrange(LOOPS_END - 4000, LOOPS_END)
    return loop


def serving(model: Path, clients: Sequence[int], rounds: int, save: Save) -> dict[str, Any]:
    """Measure `rounds` rounds of each kind of answer and number of clients, server by server."""
    result: dict[str, Any] = {"engines": {}, "failed": {}, "rows": []}
    with ExitStack() as stack:
        running: dict[tuple[str, int], Server] = {}
        for name, flags in FLAGS.items():
            served = SERVERS[name]
            for drafts in (0, DRAFTS):
                command = [*served.command(model), *(flags if drafts else ())]
                shape = {"version": served.version, "precision": served.precision}
                result["engines"][_label(name, drafts)] = {**shape, "flags": {"command": shown(command)}}
                try:
                    log = HOME / f"{name.replace(' ', '-')}-{drafts}.log"
                    server = stack.enter_context(Server(command, log, served.environment))
                    server.wait_ready(START_S)
                    running[name, drafts] = server
                except (ServerError, OSError) as error:
                    result["failed"][_label(name, drafts)] = str(error)
        for turn in range(-1, rounds):  # the first round is a warm-up
            for kind in KINDS:
                for count in clients:
                    for (name, drafts), server in list(running.items()):
                        time.sleep(SETTLE_S)
                        asks = [_ask(model, kind, count * (turn + 1) + client) for client in range(count)]
                        try:
                            row = measure_asks(server, asks, openai_count, NEW)
                        except LoadError as error:
                            result["failed"][_label(name, drafts)] = f"{kind}, {count} clients: {error}"
                            del running[name, drafts]
                            continue
                        if turn >= 0:
                            place = {"engine": name, "drafts": drafts, "kind": kind, "clients": count, "round": turn}
                            result["rows"].append(place | row)
            save(result)
    return result


def _label(name: str, drafts: int) -> str:
    return f"{name}, n-gram" if drafts else name


def _ask(model: Path, kind: str, place: int) -> Ask:
    return Ask(0.0, "/v1/completions", json.dumps(ids_body(model, prompt(kind, place), "", NEW)))
