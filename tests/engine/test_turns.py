"""Steps and a vision tower that runs beside them take turns."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import torch

from tgi_core.engine.media.turns import Turns

SECONDS = 60


class Tower:
    """Runs operations beside steps, in a thread of its own, and notes what has happened."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.happened = turns, list[str]()
        self._pool = ThreadPoolExecutor(1)
        self._begun = Event()

    def run(self) -> Future[None]:
        """Begin, and go on once the tower may."""
        running = self._pool.submit(self._run)
        assert self._begun.wait(SECONDS)
        return running

    def _run(self) -> None:
        with self.turns.beside():
            self._begun.set()
            torch.ones(2).sum()
            self.happened.append("tower")


def test_a_tower_waits_while_a_step_runs() -> None:
    """Before its next operation."""
    tower = Tower(Turns())
    with tower.turns.step():
        running = tower.run()
        torch.ones(2).sum()
        tower.happened.append("step")
    running.result(SECONDS)
    assert tower.happened == ["step", "tower"]


def test_a_step_waits_for_the_towers_turn() -> None:
    """The tower has one between two steps, and gives it back when it has ended."""
    tower = Tower(Turns(share=1e9))
    with tower.turns.step():
        running = tower.run()
    with tower.turns.step():
        tower.happened.append("step")
    running.result(SECONDS)
    assert tower.happened == ["tower", "step"]


def test_a_step_that_needs_the_tower() -> None:
    """It lets the tower go on to the end of its image, and then has it alone."""
    tower = Tower(Turns())
    with tower.turns.step():
        running = tower.run()
        with tower.turns.alone():
            tower.happened.append("step")
    running.result(SECONDS)
    assert tower.happened == ["tower", "step"]
