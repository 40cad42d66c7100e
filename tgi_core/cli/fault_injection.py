"""--inject-faults: make a backend fail on purpose, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgi_core.config import Settings
from tgi_core.errors import StartupError

if TYPE_CHECKING:
    from tgi_core.backend.fault_schedule import Rule
    from tgi_core.backend.session import Session


def fault_rules(settings: Settings) -> tuple[Rule, ...]:
    """Parse --inject-faults; no rules by default. Raises StartupError."""
    if settings.inject_faults is None:
        return ()
    from tgi_core.backend.fault_schedule import parse_schedule

    try:
        return parse_schedule(settings.inject_faults)
    except ValueError as error:
        raise StartupError(f"--inject-faults {settings.inject_faults}: {error}") from error


def inject_faults(session: Session, settings: Settings) -> Session:
    """Enable fault injection in a session if configured, and return the session."""
    rules = fault_rules(settings)
    if rules:
        from tgi_core.backend.faults import inject

        inject(session, rules)
    return session
