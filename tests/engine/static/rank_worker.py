"""Rank 1 of a pair on the emulated static device: runs the same schedule as the test that started it.

python -m tests.engine.static.rank_worker FOLDER STORE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tgi_backend_static_cpu.compiler import GraphCompiler
from tgi_backend_static_cpu.kit import StaticCpuKit

from tests.engine.static.opened import PLAN, Few, open_on_static
from tests.engine.static.traffic import Traffic
from tests.engine.tiny_models import ragged_schedule
from tgi_core.backend import Capacity, Group
from tgi_core.backend.session import Session

ONE_SIZE = Few(takes=(48,), waste=0.4)
SEEDS, STEPS = (1, 2, 3), 40


def walk(session: Session, capacity: Capacity) -> list[list[int]]:
    """The tokens of random traffic, step by step."""
    found = []
    for seed in SEEDS:
        session.clear(None)
        traffic = Traffic(session, capacity, seed, first_id=1000 * seed)
        found += [[token for tokens in traffic.step().values() for token in tokens] for _ in range(STEPS)]
    return found


def run_rank(folder: Path, store: Path, rank: int) -> dict[str, Any]:
    """The tokens that one of two ranks makes, and the programs that it ran, in order."""
    ran: list[str] = []
    compile_ = GraphCompiler.compile

    def noted(compiler: GraphCompiler, run: Any, name: str) -> Any:
        program = compile_(compiler, run, name)

        def call(*arguments: Any) -> Any:
            ran.append(name)
            return program(*arguments)

        return call

    GraphCompiler.compile = noted  # type: ignore[method-assign]
    try:
        group = Group(rank, 2, f"file:{store}", rank, 2)
        session, capacity = open_on_static(folder, PLAN, StaticCpuKit(ONE_SIZE), group=group)
        tokens = {str(id): made for id, made in ragged_schedule(session, capacity).items()}
        walked = walk(session, capacity)
        compiles = session.stats().compiles
        session.close()
    finally:
        GraphCompiler.compile = compile_  # type: ignore[method-assign]
    return {"tokens": tokens, "walked": walked, "ran": ran, "compiles": compiles, "warmed": capacity.compiles}


if __name__ == "__main__":
    print(json.dumps(run_rank(Path(sys.argv[1]), Path(sys.argv[2]), 1)))
