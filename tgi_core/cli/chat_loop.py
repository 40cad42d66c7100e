"""A conversation in the terminal: lines in, answers and commands out."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from tgi_core.cli.chat_client import AnswerTimes, ChatClient, ChatError

_HELP = """/reset          forget the conversation, and keep the system prompt
/system TEXT    set the system prompt and start anew; without TEXT, remove it
/set NAME VALUE set a field of requests, such as temperature 0.5; without VALUE, unset it; without both, list them
/retry          answer the last message again
/help           this list
/exit           end the program, as Ctrl-D does
Ctrl-C stops an answer. A line that ends with \\ goes on in the next one."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey, such as escape sequences; tabs and line feeds stay."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Chat:
    """A conversation and how its answers are sampled."""

    def __init__(self, client: ChatClient, system: str | None, sampling: dict[str, Any]) -> None:
        self.client, self.system, self.sampling = client, system, sampling
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def say(self, text: str) -> None:
        """Send a message, and print the answer as it comes. Ctrl-C stops it; what has come stays in the conversation. A message
        without an answer is forgotten."""
        self.messages.append({"role": "user", "content": text})
        answer = self._answer()
        if answer is None:
            self.messages.pop()
        else:
            self.messages.append({"role": "assistant", "content": answer})

    def retry(self) -> None:
        """Answer the last message again."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self.say(self.messages.pop()["content"])
        else:
            print("there is no message yet")

    def _answer(self) -> str | None:
        """The answer, as far as it has come; None if there is none."""
        parts: list[str] = []
        times, printer, stopped = AnswerTimes(), _Printer(), False
        try:
            with contextlib.closing(self.client.stream(self.messages, self.sampling, times)) as pieces:
                for piece in pieces:
                    parts += [] if piece.thought else [piece.text]  # first: what is shown is kept, whenever Ctrl-C comes
                    printer.write(piece.text, piece.thought)
        except KeyboardInterrupt:
            stopped = True
        except ChatError as error:
            printer.end()
            print(f"tgi: error: {printable(str(error))}", file=sys.stderr, flush=True)
            return "".join(parts) or None
        printer.end("stopped" if stopped else _told(times))
        return "".join(parts) or (None if stopped else "")


class _Printer:
    """Prints an answer in pieces: reasoning is dim on a terminal."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty()
        self._dim, self._begun = False, False

    def write(self, text: str, thought: bool) -> None:
        """Print a piece."""
        if thought != self._dim:
            if self._begun:
                sys.stdout.write("\n")
            self._switch(thought)
        self._begun = True
        sys.stdout.write(printable(text))
        sys.stdout.flush()

    def end(self, note: str = "") -> None:
        """End the answer, with a note about it on a terminal."""
        self._switch(False)
        if self._colours and note:
            sys.stdout.write(f"\n{_DIM}[{note}]{_PLAIN}")
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _switch(self, dim: bool) -> None:
        if self._colours and dim != self._dim:
            sys.stdout.write(_DIM if dim else _PLAIN)
        self._dim = dim


def printable(text: str) -> str:
    """Text without control characters, so that a model cannot command the terminal."""
    return _CONTROLS.sub("", text)


def _told(times: AnswerTimes) -> str:
    if times.first_s is None or times.seconds is None or not times.tokens:
        return ""
    decoding = times.seconds - times.first_s
    rate = f", {(times.tokens - 1) / decoding:.1f} tokens/s" if times.tokens > 1 and decoding > 0 else ""
    return f"{times.tokens} tokens{rate}, the first after {1e3 * times.first_s:.0f} ms"


def converse(chat: Chat, interactive: bool) -> None:
    """Read lines until the end of standard input or /exit. On a terminal they can be edited, and Ctrl-C at the prompt drops a line."""
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  input() then has a history and can be edited
        print(f"chatting with {printable(chat.client.model)}; /help lists the commands, Ctrl-D ends", flush=True)
    while True:
        try:
            line = _read(interactive)
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\nCtrl-D or /exit ends the program")
            continue
        if line.strip() in ("/exit", "/quit"):
            return
        if line.startswith("/"):
            _obey(chat, line)
        elif line.strip():
            chat.say(line)


def _read(interactive: bool) -> str:
    """A line, or several that are joined by a backslash."""
    line = input("> " if interactive else "")
    while line.endswith("\\"):
        line = line[:-1] + "\n" + input("… " if interactive else "")
    return line


def _obey(chat: Chat, line: str) -> None:
    name, _, rest = line.strip().partition(" ")
    commands: dict[str, Callable[[], None]] = {
        "/help": lambda: print(_HELP),
        "/reset": chat.reset,
        "/retry": chat.retry,
        "/set": lambda: _set(chat, rest.strip()),
        "/system": lambda: _set_system(chat, rest.strip()),
    }
    if name not in commands:
        print(f"{name}: no such command; /help lists them")
        return
    commands[name]()


def _set_system(chat: Chat, text: str) -> None:
    chat.system = text or None
    chat.reset()


def _set(chat: Chat, text: str) -> None:
    name, _, value = text.partition(" ")
    if not name:
        for known, found in chat.sampling.items():
            print(f"{known} {json.dumps(found)}")
    elif not value:
        chat.sampling.pop(name, None)
    else:
        try:
            chat.sampling[name] = json.loads(value)
        except ValueError:
            chat.sampling[name] = value
