"""Judging grammars: a death is no verdict, and whoever sends costly ones holds up nobody else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.grammar.schemas import json_grammar, regex_grammar
from tgi_core.grammar import Cost, GrammarsBusy, InvalidGrammar, validator
from tgi_core.grammar import matching as engine
from tgi_core.grammar.limits import MAX_COMPILED_BYTES
from tgi_core.grammar.validator import GrammarValidator

GATED = Path(__file__).with_name("gated_worker.py")
USUAL = json_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})


@asynccontextmanager
async def opened() -> AsyncIterator[GrammarValidator]:
    """A validator, closed with the block."""
    checker = GrammarValidator()
    try:
        yield checker
    finally:
        await checker.close()


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where accidents are ordered; see `gated_worker`."""
    monkeypatch.setenv("GATES", str(tmp_path))
    monkeypatch.setattr(validator, "_WORKER", GATED)
    return tmp_path


def trials() -> list[psutil.Process]:
    """The workers that there are."""
    return [child for child in psutil.Process().children() if any("_worker.py" in word for word in child.cmdline())]


async def until_open(gate: Path) -> int:
    """The writing end of a FIFO, once a worker reads from it."""
    while True:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            await asyncio.sleep(0)


async def test_what_a_grammar_costs() -> None:
    """A good one costs what it takes, in bytes and in seconds; a bad one is told what is wrong with it, now and again."""
    async with opened() as checker:
        small, large = (
            await checker.cost(USUAL),
            await checker.cost(json_grammar({"enum": [f"value {n}" for n in range(3000)]})),
        )
        assert 0 < small.bytes < 1 << 20 and small.bytes < large.bytes < MAX_COMPILED_BYTES
        assert 0 <= small.seconds <= large.seconds  # some clocks tick slowly
        texts = []
        for _ in range(2):
            with pytest.raises(InvalidGrammar, match="unclosed group") as raised:
                await checker.cost(regex_grammar("(a"))
            texts.append(str(raised.value))
        assert texts[0] == texts[1]


async def test_who_only_wants_to_know_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is the workers' alone: nothing is read or compiled in this process."""
    monkeypatch.setattr(engine, "start", lambda *_: pytest.fail("compiled in this process"))
    monkeypatch.setattr(engine, "translate", lambda *_: pytest.fail("read in this process"))
    async with opened() as checker:
        await checker.cost(USUAL)
        with pytest.raises(InvalidGrammar, match="look-around"):
            await checker.cost(regex_grammar("(?=a)b"))


async def test_too_large_is_said_so() -> None:
    """One that compiles in time and takes too much memory is refused by its size."""
    async with opened() as checker:
        with pytest.raises(InvalidGrammar, match=r"too large|too complex"):
            await checker.cost(json_grammar({"type": "integer", "multipleOf": 160_001}))


async def test_killed_while_idle() -> None:
    """A worker that dies between two grammars costs neither."""
    async with opened() as checker:
        await checker.cost(regex_grammar("a"))
        for process in trials():
            process.kill()
        assert isinstance(await checker.cost(regex_grammar("b")), Cost)


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV"])
async def test_killed_in_the_middle(gates: Path, end: str) -> None:
    """A valid grammar whose worker dies is tried by another one."""
    (gates / f"1-{end}").touch()
    async with opened() as checker:
        assert isinstance(await checker.cost(USUAL), Cost)


@pytest.mark.parametrize(("end", "error"), [("SIGKILL", GrammarsBusy), ("SIGABRT", InvalidGrammar)])
async def test_killed_twice(gates: Path, end: str, error: type[Exception]) -> None:
    """A valid grammar that loses two workers is not judged: its next try is its first."""
    for number in range(2):
        (gates / f"{number}-{end}").touch()
    async with opened() as checker:
        with pytest.raises(error):
            await checker.cost(USUAL)
        assert isinstance(await checker.cost(USUAL), Cost)


async def test_small_ones_pass_a_slow_one(gates: Path) -> None:
    """While a costly grammar is at work and others of its kind wait, unknown small ones are answered; then it is, too."""
    os.mkfifo(gates / "slow")
    async with opened() as checker:
        costly = [asyncio.create_task(checker.cost(regex_grammar(f"costly slow {n}"))) for n in range(3)]
        gate = await until_open(gates / "slow")
        for number in range(20):
            await checker.cost(regex_grammar(f"polite {number}"))
        assert not any(task.done() for task in costly)
        (gates / "slow").unlink()
        os.close(gate)
        assert all(isinstance(cost, Cost) for cost in await asyncio.gather(*costly))


async def test_known_ones_pass_busy_lanes(gates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all lanes are busy and nobody may wait any more, grammars that are known, good or bad, are told at once."""
    monkeypatch.setattr(validator, "_QUICK_WAITING", 0)
    async with opened() as checker:
        await checker.cost(USUAL)
        with pytest.raises(InvalidGrammar, match="unclosed group"):
            await checker.cost(regex_grammar("(a"))
        gated = []
        for name in ("one", "two"):
            os.mkfifo(gates / name)
            gated.append(asyncio.create_task(checker.cost(regex_grammar(name))))
        writers = [await until_open(gates / name) for name in ("one", "two")]
        assert isinstance(await checker.cost(USUAL), Cost)
        with pytest.raises(InvalidGrammar, match="unclosed group"):
            await checker.cost(regex_grammar("(a"))
        with pytest.raises(GrammarsBusy):
            await checker.cost(regex_grammar("unknown"))
        for writer in writers:
            os.close(writer)
        await asyncio.gather(*gated)
        assert isinstance(await checker.cost(regex_grammar("unknown")), Cost)


async def test_one_trial_for_all_who_ask(gates: Path) -> None:
    """Whoever asks for a grammar that is being tried waits for that trial, which goes on when the first of them leaves."""
    os.mkfifo(gates / "one")
    async with opened() as checker:
        asking = [asyncio.create_task(checker.cost(regex_grammar("one"))) for _ in range(50)]
        writer = await until_open(gates / "one")
        asking[0].cancel()
        (gates / "one").unlink()
        os.close(writer)
        costs = await asyncio.gather(*asking[1:])
        assert all(cost is costs[0] for cost in costs) and asking[0].cancelled()
        assert len(trials()) == 1


async def test_verdicts_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many grammars the last ones are remembered; and a fault is short, whatever names it tells."""
    monkeypatch.setattr(validator, "REMEMBERED", 3)
    async with opened() as checker:
        costs = [await checker.cost(regex_grammar(f"a{number}")) for number in range(6)]
        again = [await checker.cost(regex_grammar(f"a{number}")) for number in (5, 4, 3, 0)]
        assert [cost is costs[number] for cost, number in zip(again, (5, 4, 3, 0), strict=True)] == [True, True, True, False]
        with pytest.raises(InvalidGrammar) as raised:
            await checker.cost(json_grammar({"type": "object", "properties": {"x" * 9000: {"type": "stranger" * 900}}}))
        assert len(str(raised.value)) < 300


async def test_slow_is_not_costly(gates: Path) -> None:
    """Time by the clock does not count: a worker that is kept from the processor is waited for."""
    os.mkfifo(gates / "one")
    async with opened() as checker:
        asking = asyncio.create_task(checker.cost(regex_grammar("one")))
        writer = await until_open(gates / "one")
        [process] = trials()
        process.send_signal(signal.SIGSTOP)
        os.close(writer)
        await asyncio.wait({asking}, timeout=1.0)
        assert not asking.done()
        process.send_signal(signal.SIGCONT)
        assert isinstance(await asking, Cost)
