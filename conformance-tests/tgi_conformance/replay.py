"""Run a recorded failure again, call by call, with the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Trace, decode, sentence
from tgi_conformance.golden import HERE
from tgi_conformance.masks import SOURCES
from tgi_conformance.session_driver import SessionDriver
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import Target
from tgi_conformance.verdict import SuiteFault, Violation
from tgi_core.backend import Feature, WarmupPlan


class BadRecording(ValueError):
    """A file that is not a recorded failure; the message says why."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded failure."""

    header: dict[str, Any]
    setup: Setup
    trace: Trace

    @property
    def clause(self) -> str:
        """Id of the clause that failed."""
        return str(self.header["clause"])


def read_recording(path: Path) -> Recording:
    """Read a recording from a file. Raises BadRecording."""
    try:
        header, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        trace = [decode(line) for line in lines]
        return Recording(header, _setup(header["setup"]), trace) if header["clause"] and header["backend"] else _never(path)
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRecording(f"{path}: not a recorded failure: {type(error).__name__}: {error}") from error


def _never(path: Path) -> Recording:
    raise BadRecording(f"{path}: names neither a clause nor a backend")


def _setup(value: dict[str, Any]) -> Setup:
    plan = value["plan"]
    if plan is not None:
        plan = WarmupPlan(**plan | {"features": frozenset(map(Feature, plan["features"]))})
    if value["masks"] not in (None, *SOURCES):
        raise ValueError(f"there is no mask source {value['masks']}")
    if value["golden"] is not None and value["golden"] not in {path.name for path in HERE.iterdir()}:
        raise ValueError(f"there is no golden checkpoint {value['golden']}")
    return Setup(
        *(
            plan,
            value["masks"],
            value["golden"],
            value["dtype"],
            bool(value["bits"]),
            bool(value["adapters"]),
            int(value["ranks"]),
        ),
        alone=bool(value["alone"]),
        vocab_size=None if value["vocab_size"] is None else int(value["vocab_size"]),
        speculating=bool(value.get("speculating")),  # recordings of earlier suites do not say
        cache_dtype=str(value.get("cache_dtype", "auto")),
    )


def replay(recording: Recording, target: Target) -> Iterator[str]:
    """Yield a sentence for each call. Raises Violation if a law is broken, BackendError if the session does not open."""
    alone = Alone(target)
    play = SessionDriver.open(target, recording.setup, alone)
    try:
        for number, call in recording.trace:
            text = sentence(number, call)
            if not play.possible(call):
                yield f"{text}: left out, because what it refers to does not exist here"
                continue
            expected = play.oracle.expect(call)
            play.call(call, number)
            yield f"{text}: {'refused as it must be' if expected.errors else 'done'}"
        play.leave()
    except SuiteFault as fault:
        raise Violation("replay", str(fault)) from fault
    finally:
        play.drop()
        alone.close()


def write_recording(folder: Path, clause: str, lines: tuple[dict[str, Any], ...]) -> Path:
    """Write a recording to a file named after its clause."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{clause}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
