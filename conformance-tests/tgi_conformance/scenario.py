"""The context of a clause's scenario: sessions watched by the oracle, and what the backend declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tgi_conformance.baseline import Alone
from tgi_conformance.judge import TOLERANCE, Yardstick, close_call
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_driver import SessionDriver
from tgi_conformance.session_setup import Setup
from tgi_conformance.sessions import Occupied
from tgi_conformance.target import Target
from tgi_core.backend import Capabilities, Capacity, Request, Row, WarmupPlan

_T = TypeVar("_T")


@dataclass
class Scene:
    """One run of one clause.

    `seed` drives everything random, and `effort` scales how much is tried; `shorten` shrinks failing sequences for people to read.
    A scene uses one session at a time: asking for a stage leaves the previous one. A `fresh` scene reuses no session.
    """

    target: Target
    alone: Alone
    seed: int = 0
    effort: float = 1.0
    shorten: bool = True
    fresh: bool = False
    situations: Counter[str] = field(default_factory=Counter)
    plays: list[SessionDriver] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """Measurements for the report."""

    def stage(
        self, plan: WarmupPlan | None = None, masks: str | None = None, *, fresh: bool = False, shared: bool = False
    ) -> Stage:
        """Return a stage on an empty session.

        Use `shared` for a plan that other scenarios use too. `fresh` opens the session now; only one that is also `shared` is used
        again.
        """
        return Stage(self.play(Setup(plan, masks), fresh=fresh, shared=shared), self.seed)

    def play(self, setup: Setup, *, fresh: bool = False, shared: bool = False) -> SessionDriver:
        """Return a driver for an empty session."""
        self.leave()
        special = (setup.plan is not None and not shared) or setup.ranks > 1  # no other scenario uses such a session
        private = special or self.fresh
        play = SessionDriver.open(self.target, setup, self.alone, self.situations, fresh=fresh or private)
        play.private = private or (fresh and not shared)
        self.plays.append(play)
        return play

    def leave(self) -> None:
        """Leave the current session. Raises Violation for anything that could not be judged before."""
        if self.plays:
            self.plays[-1].leave()

    def settle(self) -> None:
        """End an interrupted scenario's session and compare its rows. Raises Violation for one that is wrong."""
        if self.plays and not self.plays[-1].failed:
            self.plays[-1].drop()
            self.plays[-1].settle()

    def opened(self, open: Callable[[], _T]) -> _T:
        """Leave the session and call `open`, which opens something on the device; close idle sessions if it needs room."""
        self.leave()
        return self.alone.sessions.admit(open)

    def makes_alone(self, request: Request, count: int, yardstick: Yardstick | None = None) -> list[Row]:
        """Return the first `count` results of a request run alone on the device.

        `yardstick` comes from a session with another setup.
        """
        return self.aside(lambda: (yardstick or self.alone).rows(request, count))[:count]

    @property
    def breakable(self) -> bool:
        """Whether the suite can make a step fail."""
        return self.aside(lambda: self.alone.breakable)

    @property
    def tolerance(self) -> float:
        """Largest accepted difference of a logprob, in nats."""
        return TOLERANCE.get(self.target.dtype, TOLERANCE["bfloat16"])

    def same(self, request: Request, mine: Sequence[Row], alone: Sequence[Row]) -> bool:
        """Return whether rows have the tokens of a request run alone, up to a choice that rounding may have changed."""
        for row, other in zip(mine, alone, strict=True):
            if row.tokens != other.tokens:
                return not self.target.exact and close_call(request, other, self.tolerance)
        return True

    @property
    def declared(self) -> tuple[Capabilities, Capacity]:
        """What a session with a mask source declares and promises."""
        return self.aside(lambda: self.alone.declared)

    @property
    def adapted(self) -> Capabilities | None:
        """What a session opened with the golden adapters declares, or None if they are refused."""
        return self.aside(lambda: self.alone.adapted)

    @property
    def seeing(self) -> tuple[str, ...]:
        """The golden checkpoints whose sessions take images."""
        return self.aside(lambda: self.alone.seeing)

    def aside(self, ask: Callable[[], _T]) -> _T:
        """Call `ask`; if the device has no room, put the current session aside for that time."""
        try:
            return ask()
        except Occupied:
            play = self.plays[-1]
            play.step_aside()
        try:
            return ask()
        finally:
            play.come_back()

    @property
    def culprit(self) -> SessionDriver | None:
        """The session that broke a law, or else the last one."""
        return next((play for play in self.plays if play.failed), self.plays[-1] if self.plays else None)

    def end(self) -> None:
        """Drop the current session, if the scenario did not finish."""
        if self.plays:
            self.plays[-1].drop()
