"""Rank 1 of a pair that runs one step ahead: the same schedule as the test that started it, on one checkpoint after the other.

python -m tests.engine.ahead.rank_worker FD
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.ahead.opened import PLAN, Ahead
from tests.engine.ahead.test_tokens import Chain
from tests.engine.rank_pair import answer
from tests.engine.tiny_models import PROMPTS, silent
from tgi_core.backend import Group, OpenOptions, OutputOptions, Progress, Sampling
from tgi_core.backend.session import Session
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.open_model import open_session
from tgi_core.engine.paged_decoder import PagedDecoderRunner

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"sampling": Sampling(do_sample=True, seed=3)},
    {"want": OutputOptions(top_n=2)},
    {"masked": True},
    {"sampling": Sampling(do_sample=True, seed=5, repetition_penalty=1.3)},
)
"""Rows that the device samples, and rows that rank 0's host samples, one of them with a mask that only rank 0 has."""


class TableKit(LateKit):
    """A late device that runs tables by torch's operators."""

    def table_refusal(self) -> str:
        """It runs every table."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """By torch's operators."""
        return PagedDecoderRunner(self, weights, (TorchOperators(),), progress)


def run_rank(
    folder: Path, store: Path, rank: int, world: int = 2, new_kit: Callable[[LateQueue], LateKit] = TableKit
) -> dict[str, Any]:
    """What one of the ranks makes of a checkpoint."""
    group, queue = Group(rank, world, f"file:{store}", rank, world), LateQueue()
    options = OpenOptions(str(folder), dtype="float32", group=group, masks=Chain() if rank == 0 else None)
    session = Session(open_session(options, new_kit(queue), silent), "late")
    try:
        capacity = session.warmup(PLAN, silent)
        run = Ahead(session)
        rows = [run.request(id, PROMPTS[id % 3], **kind) for id, kind in enumerate(KINDS, 1)]
        run.launch(*rows[:3])
        run.launch(*rows[3:])
        for _ in range(5):
            run.launch()
        run.handle = session.filter(run.handle, (1, 3, 4, 5))
        for _ in range(3):
            run.launch()
        waiting = queue.waiting
        run.finish()
        chosen = session.capabilities().kernels
        kernels, reasons = ({kernel.part: getattr(kernel, name) for kernel in chosen} for name in ("name", "reason"))
        tokens = {str(id): run.tokens(id) for id in range(1, len(KINDS) + 1)}
        replays = sum(graph.replays for maker in queue.makers for graph in maker.made)
        told = {"tokens": tokens, "kernels": kernels, "reasons": reasons}
        return {**told, "compiles": capacity.compiles, "waiting": waiting, "replays": replays}
    finally:
        session.close()


if __name__ == "__main__":
    answer(run_rank)
