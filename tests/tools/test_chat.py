"""`tgi chat`: a conversation in the terminal, with a server that runs or one of its own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator, Iterator

import psutil
import pytest

from tests.serve.process import TGI, environment, free_port, served
from tests.tools.openai_server import Body, OpenAiServer, chat, openai_server
from tests.tools.terminal import Terminal


def piped(lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The chat with lines on its standard input."""
    command = [*TGI, "chat", *arguments]
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, env=environment(), check=False)


@pytest.fixture
def echo() -> Generator[OpenAiServer, None, None]:
    """A server that answers with what was said last."""
    with openai_server(lambda body: chat(["You said ", body["messages"][-1]["content"]])) as server:
        yield server


def test_answers_are_printed(echo: OpenAiServer) -> None:
    """Each line of standard input is a message of one conversation, and standard output has the answers alone."""
    done = piped("hello\nand \\\nthis\n", echo.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said hello\nYou said and \nthis\n", "")
    said = [(message["role"], message["content"]) for message in echo.bodies[1]["messages"]]
    assert said == [("user", "hello"), ("assistant", "You said hello"), ("user", "and \nthis")]
    assert echo.bodies[0]["model"] == "a-model" and echo.bodies[0]["stream"] is True


def test_commands(echo: OpenAiServer) -> None:
    """/reset forgets, /system sets a prompt and begins anew, /set changes fields, /retry asks again; flags are the first fields."""
    lines = [
        "one",
        "/retry",
        "/system Be brief.",
        "two",
        "/reset",
        "/set top_k 5",
        "/set temperature",
        "/set",
        "three",
        "/nonsense",
    ]
    flags = ("--temperature", "0.5", "--max-tokens", "9", "--system", "Be kind.", "--model", "other")
    done = piped("\n".join([*lines, "/exit", "unread"]), echo.url, *flags)
    assert done.returncode == 0, done.stderr
    conversations = [[message["content"] for message in body["messages"]] for body in echo.bodies]
    assert conversations == [["Be kind.", "one"]] * 2 + [["Be brief.", "two"], ["Be brief.", "three"]]
    first, last = echo.bodies[0], echo.bodies[-1]
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0.5, 9, "other")
    assert last["top_k"] == 5 and "temperature" not in last
    assert "max_tokens 9\ntop_k 5\n" in done.stdout and "/nonsense: no such command" in done.stdout


def test_help_lists_every_command(echo: OpenAiServer) -> None:
    """What /help lists is understood."""
    names = [line.split()[0] for line in piped("/help\n", echo.url).stdout.splitlines() if line.startswith("/")]
    assert names == ["/reset", "/system", "/set", "/retry", "/help", "/exit"]
    assert "no such command" not in piped("\n".join(names), echo.url).stdout


def test_the_model_cannot_command_the_terminal() -> None:
    """Escape sequences and other control characters of an answer are not printed; tabs and lines are."""
    with openai_server(lambda body: chat(["a\x1b[2Jb\x07\tc\n\x9b1md\r", "é漢"])) as server:
        assert piped("hi\n", server.url).stdout == "a[2Jb\tc\n1mdé漢\n"


def test_errors_do_not_end_the_program() -> None:
    """A refusal is told on standard error, its message is forgotten, and the conversation goes on."""
    answers: list[Iterator[Body | str] | int] = [429, iter([{"error": {"message": "out of \x1bmemory"}}]), chat(["fine"])]
    with openai_server(lambda body: answers[len(server.bodies) - 1]) as server:
        done = piped("one\ntwo\nthree\n", server.url)
    assert done.returncode == 0 and done.stdout.split() == ["fine"]
    assert "429: try again later" in done.stderr and "out of memory" in done.stderr
    assert [message["content"] for message in server.bodies[2]["messages"]] == ["three"]


def test_no_server() -> None:
    """An address where nobody answers is named."""
    done = piped("hi\n", url := f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1 and f"{url}: no answer: Connection refused" in done.stderr
    both = piped("", url, "--", "--dtype", "float32")
    assert both.returncode == 1 and "is a server that runs already" in both.stderr


def test_ctrl_c_stops_the_answer_only() -> None:
    """The server is left at once, the answer so far stays in the conversation, and the next message is answered."""
    gone = threading.Event()

    def answer(body: Body) -> Iterator[Body | str]:
        if len(body["messages"]) > 1:
            yield from chat(["the end"])
            return
        yield {"choices": [{"delta": {"content": "It was"}}]}
        while not server.left.is_set() and not gone.wait(0.02):
            yield {"choices": [{"delta": {"content": " so"}}]}

    with openai_server(answer) as server, Terminal("chat", server.url) as terminal:
        terminal.until("> ")
        terminal.press("\x03", "Ctrl-D or /exit ends the program")
        terminal.until("> ")
        terminal.type("tell me\n")
        terminal.until("It was so")
        terminal.type("\x03")
        terminal.until("[stopped]")
        assert server.left.wait(30)
        terminal.until("> ")
        terminal.type("go on\n")
        terminal.until("the end")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
        gone.set()
    said = [message["content"] for message in server.bodies[1]["messages"]]
    assert said[0] == "tell me" and said[1].startswith("It was so") and said[2] == "go on"


def test_figures_on_a_terminal(echo: OpenAiServer) -> None:
    """After an answer a terminal shows its tokens and its times; the model's reasoning is apart."""
    with Terminal("chat", echo.url) as terminal:
        terminal.type("hello\n")
        terminal.until("You said hello")
        assert "2 tokens" in terminal.until("the first after")
        terminal.type("/exit\n")
        assert terminal.end() == 0


def test_a_server_of_its_own() -> None:
    """Without a URL a server is started, which ends with the chat: no process is left."""
    mark = f"--max-concurrent-requests={5000 + os.getpid()}"  # tells the server from those of other tests
    done = piped("hello\n", "--max-tokens", "3", "--", "--backend", "reference", mark)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert "ready after" not in done.stderr
    assert not [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or ())]


def test_a_server_that_does_not_start() -> None:
    """Its reason is shown, and the chat ends with status 1."""
    done = piped("", "/nowhere/at-all", "--", "--backend", "reference")
    assert done.returncode == 1
    assert "/nowhere/at-all" in done.stderr and "the server ended with status 1" in done.stderr


def test_a_real_server() -> None:
    """Against `tgi serve` an answer is made of the tokens asked for."""
    with served("--backend", "reference") as server:
        done = piped("hello\n", server.url, "--max-tokens", "5", "--seed", "3")
        assert done.returncode == 0 and done.stdout.strip()
