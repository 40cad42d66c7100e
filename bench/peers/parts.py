"""Parts of a comparison, in measuring order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tgi_backend_cpu.choosing import INT8_ROWS

from bench.peers import drafts, http, offline
from bench.peers.venvs import PEERS, Peer
from bench.random_model import make, make_looping
from bench.results import save
from bench.serving import ours

BATCHES = (1, 8, 32)
LONG = ((1, 4096), (32, 1024))
"""Batch size and prompt length."""


@dataclass(frozen=True, slots=True)
class Run:
    """A measurement in progress: the part's name, the directory of results, number of rounds, and tokens to generate per prompt."""

    name: str
    out: Path
    rounds: int
    new: int

    def note(self, what: dict[str, Any]) -> None:
        """Save intermediate results."""
        save(self.out, self.name, {"title": PARTS[self.name].title, **what}, done=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A title for the document, and the function that measures it."""

    title: str
    how: Callable[[Run], dict[str, Any]]

    def measure(self, run: Run) -> None:
        """Measure the part and save its results."""
        save(run.out, run.name, {"title": self.title, **self.how(run)}, done=True)


def _engines(*names: str) -> Mapping[str, Peer]:
    return {name: peer for name, peer in PEERS.items() if not names or name in names}


def _offline(shape: str, batches: tuple[int, ...]) -> Callable[[Run], dict[str, Any]]:
    return lambda run: offline.offline(make(shape), _engines(), batches, run.rounds, run.note, new=run.new)


def _quantized(shape: str, weights: str) -> Callable[[Run], dict[str, Any]]:
    """The others round rows to eight bits by default; we do if asked to."""
    engines = {
        **_engines("ours", "llama.cpp", "OpenVINO GenAI"),
        "ours, rounded rows": replace(PEERS["ours"], run={INT8_ROWS: "1"}),
    }
    return lambda run: offline.offline(make(shape), engines, BATCHES, run.rounds, run.note, new=run.new, weights=weights)


def _context(run: Run) -> dict[str, Any]:
    return offline.context(make(), _engines("ours", "llama.cpp"), LONG, run.rounds, run.note)


def _neighbour(run: Run) -> dict[str, Any]:
    return offline.offline(make(), _engines("ours", "llama.cpp"), BATCHES, run.rounds, run.note, busy=True, new=run.new)


def _drafts(run: Run) -> dict[str, Any]:
    return drafts.serving(make_looping(), (1, 8), run.rounds, run.note)


def _http(run: Run) -> dict[str, Any]:
    return http.serving(make(), list(http.SERVERS), BATCHES, run.rounds, run.note, run.new)


PARTS = {
    "offline-135m": Part("Engines, SmolLM2-135M's shape", _offline("135m", BATCHES)),
    "offline-500m": Part("Engines, Qwen2.5-0.5B's shape", _offline("500m", BATCHES)),
    "int8-135m": Part("Weights of 8 bits, SmolLM2-135M's shape", _quantized("135m", "int8")),
    "int4-135m": Part("Weights of 4 bits, SmolLM2-135M's shape", _quantized("135m", "int4")),
    "int8-500m": Part("Weights of 8 bits, Qwen2.5-0.5B's shape", _quantized("500m", "int8")),
    "int4-500m": Part("Weights of 4 bits, Qwen2.5-0.5B's shape", _quantized("500m", "int4")),
    "context": Part("Long contexts", _context),
    "neighbour": Part("On a busy machine", _neighbour),
    "http": Part("Servers, streaming over HTTP", _http),
    "drafts": Part("N-gram drafts, streaming over HTTP", _drafts),
    "arrivals": Part("Gaps between tokens while requests arrive", lambda run: ours.arrivals(make(), run.rounds)),
    "start": Part("Start and memory", lambda run: ours.start_and_memory(make(), run.rounds)),
    "null": Part("Server overhead without a model", lambda run: ours.null(run.rounds)),
}
