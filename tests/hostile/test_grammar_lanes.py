"""Costly grammars, each a new one: whoever sends them holds up nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.hostile.server import ServerUnderTest
from tgi_core.grammar import matching

PLAIN = {"inputs": "Once", "parameters": {"max_new_tokens": 60, "ignore_eos_token": True}}
KNOWN = {"type": "regex", "value": "(?:known|unknown)"}


def asking(grammar: dict[str, Any]) -> dict[str, Any]:
    """A request with a grammar."""
    return {"inputs": "x", "parameters": {"max_new_tokens": 8, "grammar": grammar}}


def multiple(number: int) -> dict[str, Any]:
    """A small schema that takes the longer, the larger the number is."""
    return {"type": "json", "value": {"type": "integer", "multipleOf": number}}


@contextmanager
def held_compiling(monkeypatch: pytest.MonkeyPatch, word: str) -> Iterator[threading.Semaphore]:
    """In the shard, grammars with that word compile only once the block ends; each that has begun is told."""
    begun, gate = threading.Semaphore(0), threading.Event()
    real = matching.start

    def start(vocabulary: matching.LLTokenizer, source: str) -> matching.LLMatcher:
        if word in source:
            begun.release()
            assert gate.wait(60)
        return real(vocabulary, source)

    monkeypatch.setattr(matching, "start", start)
    try:
        yield begun
    finally:
        gate.set()


def test_no_step_waits_for_a_grammar(instance: ServerUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients send grammars that the shard has not compiled yet: while the first of them is at it, plain streams and requests with
    a known grammar run from their first token to their last. The four are answered then."""
    assert instance.post("/generate", asking(KNOWN)).status_code == 200
    with ThreadPoolExecutor(4) as pool:
        with held_compiling(monkeypatch, "attack") as begun:
            attacks = [
                pool.submit(instance.post, "/generate", asking({"type": "regex", "value": f"attack {n}"})) for n in range(4)
            ]
            assert begun.acquire(timeout=60)
            for _ in range(2):
                answer = instance.post("/generate", PLAIN)
                assert answer.status_code == 200, answer.text
            assert instance.post("/generate", asking(KNOWN)).status_code == 200
            assert not any(attack.done() for attack in attacks)
        assert [attack.result().status_code for attack in attacks] == [200] * 4


def test_new_costly_grammars_without_end(instance: ServerUnderTest) -> None:
    """Each costs some tenths of a second, or is refused for it; plain streams beside them say what they say alone, small grammars that
    nobody has sent before are answered, and what is kept stays within its bytes."""
    alone = instance.client.post("/generate_stream", json=PLAIN).text
    compiler = instance.masks.compiler
    with ThreadPoolExecutor(6) as pool:
        attacks = [pool.submit(instance.post, "/generate", asking(multiple(20_011 + 2 * n))) for n in range(8)]
        riders = [pool.submit(instance.client.post, "/generate_stream", json=PLAIN) for _ in range(2)]
        for number in range(5):
            assert instance.post("/generate", asking({"type": "regex", "value": f"polite {number}"})).status_code == 200
        assert [rider.result().text for rider in riders] == [alone] * 2
        assert {attack.result().status_code for attack in attacks} <= {200, 422, 429}
    assert compiler.cached_bytes <= 256 << 20


def test_a_worker_killed_is_not_the_grammars_fault(instance: ServerUnderTest) -> None:
    """All workers that try grammars are killed, again and again: no valid grammar is refused for it, then or later."""
    for number in range(3):
        shape = {"type": "regex", "value": f"spared {number}"}
        for process in psutil.Process().children(recursive=True):
            if any(word.endswith("validation_worker.py") for word in process.cmdline()):
                process.kill()
        for _ in range(2):
            assert instance.post("/generate", asking(shape)).status_code == 200
