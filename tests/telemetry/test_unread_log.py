"""A log that nobody reads, that cannot be written, or that is closed: the server goes on, and says later what is missing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serve.process import TGI, environment, free_port

MANY = 20_000
WRITER = f"""
import logging, sys
from tgi_core.telemetry.logs import log_fatal_error, set_up

set_up(json_output=sys.argv[1] == "json")
for number in range({MANY}):
    logging.getLogger("x").info("line %d " + "x" * 100, number)
print("done", flush=True)
sys.stdin.readline()
logging.getLogger("x").info("after")
log_fatal_error("the end")
"""
DROPPED = re.compile(r"(\d+) log lines were dropped")


@contextmanager
def narrow_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield reading, writing
    finally:
        os.close(reading)


@pytest.mark.parametrize("kind", ["plain", "json"])
def test_what_does_not_fit_is_counted(kind: str) -> None:
    """Twenty thousand lines into a pipe of one page that nobody reads are logged without waiting. Whoever reads it later finds the first
    ones, how many are missing wherever some are, then what came later and, at the end, the last words: nothing is in doubt."""
    pipe = subprocess.PIPE
    with narrow_pipe() as (reading, writing):
        command = [sys.executable, "-c", WRITER, kind]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=writing, env=environment()) as child:
            os.close(writing)
            assert child.stdin is not None and child.stdout is not None
            assert child.stdout.readline() == b"done\n"
            with os.fdopen(os.dup(reading)) as log:
                lines = [log.readline()]
                while not DROPPED.search(lines[-1]):
                    assert lines[-1], "the log ends without a count"
                    lines.append(log.readline())
                child.stdin.close()
                lines += log.readlines()
        assert child.returncode == 0
    shown = [json.loads(line)["message"] if kind == "json" and line[0] == "{" else line.rstrip() for line in lines]
    assert shown[-1] == "the end" and shown[-2].endswith("after")
    following = kept = 0
    for line in shown[:-2]:
        if dropped := DROPPED.search(line):
            following += int(dropped[1])
        else:
            assert f"line {following} x" in line
            following, kept = following + 1, kept + 1
    assert following == MANY and kept > 100 and DROPPED.search(shown[-3])


@contextmanager
def serving(stderr: int, *tgi: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server whose standard error is elsewhere, once it serves; its process is ended with the block. `tgi` may run it otherwise."""
    port = free_port()
    command = [
        *(tgi or TGI),
        "serve",
        "--backend",
        "reference",
        "--hostname",
        "127.0.0.1",
        "--port",
        str(port),
        "--drain-delay",
        "0",
    ]
    with subprocess.Popen(command, stderr=stderr, env=environment({"LOG_LEVEL": "debug"})) as child:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(url, child)
            yield child, url
        finally:
            child.kill()


def wait_until_ready(url: str, child: subprocess.Popen[bytes]) -> None:
    """Until it serves."""
    while child.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            continue
    raise AssertionError(child.returncode)


def use(url: str, times: int) -> None:
    """Ask for that many answers."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(times):
            answer = client.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1}})
            assert answer.status_code == 200, answer.text
        assert client.get("/health").status_code == 200


def test_nobody_reads_the_log() -> None:
    """`tgi serve 2>&1 | sleep inf`: requests are answered on and on, and SIGTERM ends the server with status 0 though nobody reads its
    last lines."""
    with narrow_pipe() as (_, writing), serving(writing) as (child, url):
        os.close(writing)
        use(url, 100)
        child.terminate()
        assert child.wait(60) == 0


def test_the_reader_of_the_log_has_left() -> None:
    """A pipe whose reader is gone costs lines, and no answer; the lines are counted."""
    reading, writing = os.pipe()
    os.close(reading)
    with serving(writing) as (child, url):
        os.close(writing)
        use(url, 5)
        assert float(re.findall(r"^tgi_log_lines_dropped (\d+)", httpx.get(f"{url}/metrics").text, re.M)[0]) >= 5
        child.terminate()
        assert child.wait(60) == 0


def test_the_disk_of_the_log_is_full() -> None:
    """As with a reader that has left."""
    with Path("/dev/full").open("w") as full, serving(full.fileno()) as (child, url):
        use(url, 5)
        child.terminate()
        assert child.wait(60) == 0


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_standard_streams_are_closed(closed: tuple[int, ...], tmp_path: Path) -> None:
    """`tgi serve 2>&-`: it serves, and no other file gets what was meant for standard error."""
    without = " ".join(f"{number}>&-" for number in closed)
    with serving(subprocess.DEVNULL, "sh", "-c", f'exec "$@" {without}', "sh", *TGI) as (child, url):
        use(url, 5)
        for number in closed:
            assert Path(f"/proc/{child.pid}/fd/{number}").readlink() == Path("/dev/null")
        child.terminate()
        assert child.wait(60) == 0


def test_none_is_dropped_as_a_rule() -> None:
    """The counter is there from the beginning, so that an alert sees its first step."""
    with serving(subprocess.DEVNULL) as (_, url):
        assert re.findall(r"^tgi_log_lines_dropped (.*)", httpx.get(f"{url}/metrics").text, re.M) == ["0"]
