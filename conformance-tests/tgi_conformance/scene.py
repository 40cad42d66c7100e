"""What a clause's scenario gets: sessions under the oracle's eyes, and what the backend declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tgi_conformance.alone import Alone
from tgi_conformance.judge import TOLERANCE, Yardstick, close_call
from tgi_conformance.masks import ALTERNATING, BREAKING, FAILING, OWN, SLOW
from tgi_conformance.session_driver import SessionDriver, Setup
from tgi_conformance.sessions import Occupied
from tgi_conformance.stage import Stage
from tgi_conformance.target import Target
from tgi_core.backend import Capabilities, Capacity, Request, Row, WarmupPlan

_T = TypeVar("_T")


@dataclass
class Scene:
    """One run of one clause. `seed` is for what is drawn at random; `effort` scales how much; `shorten` is for people who read failures.

    One session is in its hands at a time: whoever asks for a stage has left the one before. `fresh` sessions are never used again.
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
    """What was measured on the way; reported."""

    def stage(
        self, plan: WarmupPlan | None = None, masks: str | None = None, *, fresh: bool = False, shared: bool = False
    ) -> Stage:
        """A session in the scenario's hands, on which nothing lives; a `fresh` one for scenarios that close or break it, a `shared` one
        by a plan that others ask for too."""
        return Stage(self.play(Setup(plan, masks), fresh=fresh, shared=shared), self.seed)

    def play(self, setup: Setup, *, fresh: bool = False, shared: bool = False) -> SessionDriver:
        """A session on which nothing lives."""
        self.leave()
        planned = setup.plan is not None and not shared
        special = (
            planned or setup.masks not in (None, ALTERNATING, OWN, SLOW, BREAKING, FAILING) or setup.ranks > 1
        )  # nobody else asks for one
        play = SessionDriver.open(self.target, setup, self.alone, self.situations, fresh=fresh or special or self.fresh)
        self.plays.append(play)
        return play

    def leave(self) -> None:
        """Be done with the session in hand. Raises Violation for what could not be judged before."""
        if self.plays:
            self.plays[-1].leave()

    def opened(self, open: Callable[[], _T]) -> _T:
        """What `open` opens on the device, with the room that other sessions leave when they need not stay."""
        self.leave()
        return self.alone.sessions.admit(open)

    def makes_alone(self, request: Request, count: int, yardstick: Yardstick | None = None) -> list[Row]:
        """The first `count` results of a request that has the device to itself; `yardstick` is that of a session in other circumstances."""
        return self.aside(lambda: (yardstick or self.alone).rows(request, count))[:count]

    @property
    def breakable(self) -> bool:
        """Whether the suite can make a step fail."""
        return self.aside(lambda: self.alone.breakable)

    @property
    def tolerance(self) -> float:
        """By how much a logprob may differ, in nats."""
        return TOLERANCE.get(self.target.dtype, TOLERANCE["bfloat16"])

    def same(self, request: Request, mine: Sequence[Row], alone: Sequence[Row]) -> bool:
        """Whether rows make the tokens that a request makes alone, up to where rounding may have chosen another."""
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
        """What a session that is opened with the golden adapters declares; None where they are refused."""
        return self.aside(lambda: self.alone.adapted)

    def aside(self, ask: Callable[[], _T]) -> _T:
        """An answer for which the session in hand may have to make way."""
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
        """The session that broke a law, or the last one."""
        return next((play for play in self.plays if play.failed), self.plays[-1] if self.plays else None)

    def end(self) -> None:
        """Drop the session in hand, where a scenario did not come to its end."""
        if self.plays:
            self.plays[-1].drop()
