"""What a clause's scenario gets: sessions under the oracle's eyes, and what the backend declares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from tgi_conformance.alone import Alone
from tgi_conformance.golden import adapted_golden
from tgi_conformance.masks import ALTERNATING
from tgi_conformance.play import Play, Setup
from tgi_conformance.stage import Stage
from tgi_conformance.target import Target, close
from tgi_core.backend import Capabilities, Capacity, Unsupported, WarmupPlan


@dataclass
class Scene:
    """One run of one clause. `seed` is for what is drawn at random; `effort` scales how much; `shorten` is for people who read failures."""

    target: Target
    alone: Alone
    seed: int = 0
    effort: float = 1.0
    shorten: bool = True
    situations: Counter[str] = field(default_factory=Counter)
    plays: list[Play] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """What was measured on the way; reported."""

    def stage(self, plan: WarmupPlan | None = None, masks: str | None = None) -> Stage:
        """A fresh session in the scenario's hands."""
        return Stage(self.play(Setup(plan, masks)), self.seed)

    def play(self, setup: Setup) -> Play:
        """A fresh session."""
        play = Play.open(self.target, setup, self.alone, self.situations)
        self.plays.append(play)
        return play

    @cached_property
    def declared(self) -> tuple[Capabilities, Capacity]:
        """What a session with a mask source declares and promises."""
        play = Play.open(self.target, Setup(masks=ALTERNATING), self.alone)
        close(play.session)
        return play.oracle.capabilities, play.capacity

    @cached_property
    def adapted(self) -> Capabilities | None:
        """What a session that is opened with the golden adapters declares; None where they are refused."""
        try:
            play = Play.open(self.target, Setup(golden=adapted_golden(self.target.device_kind), adapters=True), self.alone)
        except Unsupported:
            return None
        close(play.session)
        return play.oracle.capabilities

    @property
    def culprit(self) -> Play | None:
        """The session that broke a law, or the last one."""
        return next((play for play in self.plays if play.failed), self.plays[-1] if self.plays else None)

    def end(self) -> None:
        """Close every session."""
        for play in self.plays:
            close(play.session)
