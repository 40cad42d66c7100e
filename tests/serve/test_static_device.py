"""`tgi serve` on the emulated static device: what a start says, and what it finds of an earlier one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.serve.process import TGI, ServerProcess, environment, free_port, run, served

SMALL = ("--backend", "static-cpu", "--max-batch-size", "1", "--max-total-tokens", "32")


@contextmanager
def starting(cache: Path) -> Generator[tuple[ServerProcess, list[dict[str, Any]]], None, None]:
    """A server that has started, and what /readyz answered until then."""
    port, told = free_port(), list[dict[str, Any]]()
    command = [*TGI, "serve", *SMALL, "--compile-cache", str(cache), "--hostname", "127.0.0.1", "--port", str(port)]
    child = subprocess.Popen([*command, "--drain-delay", "0"], stderr=subprocess.PIPE, text=True, env=environment({}))
    server = ServerProcess(child)
    try:
        while not server.url and child.poll() is None:
            try:
                told.append(httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=30).json())
            except httpx.TransportError:  # it does not listen yet
                continue
        server.wait_ready(120)
        yield server, told
    finally:
        server.close()


def test_two_starts(tmp_path: Path) -> None:
    """The plan is said before the first program is compiled, and /readyz counts them; a second start finds them all."""
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}}
    with starting(tmp_path) as (server, told):
        steps = [answer["progress"] for answer in told if answer.get("progress", {}).get("what") == "compiling"]
        plan = next(place for place, line in enumerate(server.lines) if "will compile 6 programs: " in line)
        assert not any("compiling" in line for line in server.lines[:plan])
        assert steps and all(step["total"] == 6 and step["done"] in range(7) for step in steps)
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()
        assert any("compiled 6 programs" in line for line in server.lines) and "generated_text" in answer
    with starting(tmp_path) as (server, _):
        assert any("6 programs of an earlier start" in line for line in server.lines)
        assert any("compiled 0 programs" in line for line in server.lines)
        assert httpx.post(f"{server.url}/generate", json=body, timeout=60).json() == answer


def test_drafts_change_no_byte() -> None:
    """`--speculate` leaves every body as it is, on text that repeats itself; drafts were accepted on the way."""
    bodies = [
        {"inputs": f"{text} {index}", "parameters": {"max_new_tokens": 70 + index, **parameters}}
        for index, (text, parameters) in enumerate(
            [
                ("a b c a b c a b c a b", {}),
                ("Once upon a time, once upon a time", {"do_sample": True, "seed": 3, "temperature": 0.5}),
                ("a a a a a a a a a a", {"repetition_penalty": 1.1}),
                ("The capital of France is", {"grammar": {"type": "regex", "value": "([a-d]{2,4} ){3,9}end"}}),
            ]
        )
    ]
    found = []
    for drafts in ("0", "4"):
        sizes = ("--max-batch-size", "1", "--max-total-tokens", "128", "--speculate", drafts)
        with served("--backend", "static-cpu", *sizes) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            found.append([client.post("/generate", json=body).content for body in bodies])
            metrics = client.get("/metrics").text
    assert found[0] == found[1] and all(b"generated_text" in body for body in found[0])
    accepted = re.findall(r"^tgi_spec_decode_accepted_tokens\{.*\} (\S+)$", metrics, re.MULTILINE)
    assert sum(map(float, accepted)) > 0


def test_a_cache_that_does_not_fit() -> None:
    """One line says how many bytes are needed for what, and the exit status is 1."""
    ended = run("serve", "--backend", "static-cpu", "--max-batch-size", "1000000")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert "blocks of 16 tokens need" in last and "activations of" in last, ended.stderr
