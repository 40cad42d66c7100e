"""Blows to a running server, and the kinds of request that must not notice."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from tgi_core.model_files import DEMO

_PIDFD_GETFD = 438
"""The system call's number, the same on every architecture."""

Body = tuple[str, dict[str, Any]]
"""A route and what is posted there."""


def shard(server: int) -> psutil.Process:
    """The shard that a server has at present."""
    [found] = [child for child in psutil.Process(server).children() if "shard" in _arguments(child)]
    return found


def helpers(server: int) -> list[psutil.Process]:
    """The processes that compile grammars and render templates."""
    return [child for child in psutil.Process(server).children(recursive=True) if "shard" not in _arguments(child)]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def sent(number: int) -> Callable[[int], None]:
    """That signal, to the shard."""
    return lambda server: os.kill(shard(server).pid, number)


def stopped_for_a_moment(server: int) -> None:
    """The shard is stopped, and goes on."""
    process = shard(server)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(process.pid, number)


def shut(server: int) -> None:
    """The socket over which the shard takes its turns is shut, and both processes live."""
    process = shard(server)
    arguments = process.cmdline()
    number = int(arguments[arguments.index("--steps") + 1])
    pidfd = os.pidfd_open(process.pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, number, 0)
        if ours < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        with socket.socket(fileno=ours) as stream:
            stream.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(pidfd)


def helpless(server: int) -> None:
    """Every helper is killed."""
    found = helpers(server)
    assert found
    for process in found:
        process.kill()


BLOWS: dict[str, Callable[[int], None]] = {
    "KILL": sent(signal.SIGKILL),
    "SEGV": sent(signal.SIGSEGV),
    "ABRT": sent(signal.SIGABRT),
    "STOP": sent(signal.SIGSTOP),
    "STOP, CONT": stopped_for_a_moment,
    "steps socket shut": shut,
    "helpers killed": helpless,
}

LOSES = {"KILL", "SEGV", "ABRT", "STOP", "steps socket shut"}
"""Those after which there is another shard."""

TOKENS = 120
"""Of each answer, but where it stops by itself."""

GRAMMARS = {"grammar", "tools"}
"""The kinds of request that wait until a grammar is compiled."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Write a note.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string", "minLength": 150}}, "required": ["text"]},
        },
    }
]


def tireless(folder: Path) -> Path:
    """The demo model in that folder, with an end of sequence that it never thinks of: answers are as long as they are asked to be."""
    shutil.copytree(DEMO, folder)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((DEMO / name).read_text())
        (folder / name).write_text(json.dumps(config | {"eos_token_id": config["pad_token_id"]}))
    return folder


def native(inputs: str, tokens: int, **parameters: Any) -> Body:
    """A stream in TGI's own way."""
    return "/generate_stream", {"inputs": inputs, "parameters": {"max_new_tokens": tokens, "details": True, **parameters}}


def chat(text: str, tokens: int, **more: Any) -> Body:
    """A stream in OpenAI's way."""
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "stream": True, **more}


def bodies(adapter: str, stop: str) -> dict[str, Body]:
    """One request of each kind, none of which is done soon."""
    grammar = {"type": "regex", "value": "[a-z ]{700}"}
    return {
        "greedy": native("Once upon a time", TOKENS),
        "seeded": native("The sea", TOKENS, do_sample=True, seed=7, temperature=1.1, top_p=0.95),
        "grammar": native("Tell me about the weather.", TOKENS, grammar=grammar),
        "stop sequence": native("What is 7 plus 5?", TOKENS, do_sample=True, seed=8, stop=[stop]),
        "logprobs": chat("Hello", TOKENS, logprobs=True, top_logprobs=2, seed=9, temperature=1.2),
        "top tokens": native("The capital of France is", TOKENS, top_n_tokens=4, do_sample=True, seed=10),
        "LoRA": native("Once upon a time", TOKENS, adapter_id=adapter),
        "tools": chat("Write a note.", TOKENS, tools=TOOLS, tool_choice="required", seed=11),
    }


def told(line: str) -> Any:
    """What an event says, but for what no two answers share."""
    event = json.loads(line.removeprefix("data:"))
    for name in ("id", "created"):
        event.pop(name, None)
    for choice in event.get("choices", []):
        for call in choice["delta"].get("tool_calls", []):
            call.pop("id", None)
    for name, value in event.items():
        assert not name.startswith("error"), (name, value)
    return event


async def ask(client: httpx.AsyncClient, body: Body, seen: Callable[[], None]) -> list[Any]:
    """All events of a stream; `seen` is called for each."""
    events = []
    async with client.stream("POST", body[0], json=body[1]) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data:") and line != "data: [DONE]":
                events.append(told(line))
                seen()
    return events
