"""How to open a scenario's session."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_conformance.masks import ALTERNATING, OWN, SLOW
from tgi_conformance.sessions import SessionSpec
from tgi_conformance.target import LONG_ROW_TOKENS, MAX_ROW_TOKENS, MAX_ROWS, plan_of
from tgi_core.backend import WarmupPlan

_ALONE_TOKENS = (256, LONG_ROW_TOKENS)
"""Lengths of the longest row in sessions where long requests run alone."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How to open a session: what is needed to run a recorded failure again."""

    plan: WarmupPlan | None = None
    masks: str | None = None
    golden: str | None = None
    """The golden checkpoint to open instead of the target's model; its transcripts are the yardstick then."""
    dtype: str | None = None
    bits: bool = False
    """Rows must have the same bits as their yardstick."""
    adapters: bool = False
    """The golden checkpoint is opened with its adapters."""
    ranks: int = 1
    alone: bool = False
    """Rows of a golden checkpoint are compared with what they make alone, not with its transcripts."""
    vocab_size: int | None = None
    """The model's vocabulary is reduced to this size; None leaves it as it is."""
    speculating: bool = False
    """The model is its own speculator."""
    cache_dtype: str = "auto"
    """Requested for the KV cache. Rows that run alone have such a cache, too."""

    def yardstick(self, wanted: SessionSpec, block_sizes: tuple[int, ...], *, one_session: bool) -> SessionSpec:
        """Return the sessions in which requests run alone. Plans of similar length share one; with `one_session`, it is the scenario's."""
        longest = 0 if self.plan is None else self.plan.max_row_tokens or 0
        long, wide = longest > MAX_ROW_TOKENS, self.plan is not None and (self.plan.max_rows or 0) > MAX_ROWS
        drafts = self.plan is not None and self.plan.draft > 0
        plan = self.plan if one_session and (long or wide or drafts) else None
        if long and not one_session:
            room = next((tokens for tokens in _ALONE_TOKENS if tokens >= longest), longest)
            plan = plan_of(block_sizes, 2, room, room)
        kind = OWN if self.masks in (OWN, SLOW) else ALTERNATING
        return SessionSpec(wanted.model, wanted.dtype, "alone", plan, kind, wanted.adapters, cache_dtype=wanted.cache_dtype)
